"""The mock's language model: a real paged cache with fake values, and scripted logits.

It computes no real model, but checks every rule of :class:`vlmkit.interfaces.engine.Engine`
strictly. Each cache cell holds a fingerprint of all tokens and images up to it. A wrong prefix, a
skipped token or an overwritten block thus raises an EngineError.
"""

import threading
import time
from collections.abc import Callable, Sequence as Seq
from typing import Any

import numpy as np
from msgspec.structs import replace

from vlmkit.errors import ConfigError, EngineError
from vlmkit.interfaces.cache_events import CacheListener
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.prompt import Prompt, PromptPlan, Span
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool
from vlmkit_mock import vocabulary as v
from vlmkit_mock.answer import Answer, answer_to
from vlmkit_mock.preferences import Preferences
from vlmkit_mock.sequence_state import Cells, SequenceState, check_step, fingerprints_of
from vlmkit_mock.settings import MockEngineSettings

SCRIPTED_LOGIT = 26.0
"""All other tokens together have a probability below 1/300 at the highest temperature."""

RUNNER_UP_LOGIT = 12.0
"""For the token after the end, so that longer answers repeat themselves, and for the first call, if
an answer must begin with one."""

NUM_NOISES = 257
HIDDEN_SIZE = 8


class MockEngine:
    """Generates the answer of :func:`vlmkit_mock.answer.answer_to`, token by token."""

    def __init__(self, settings: MockEngineSettings | None = None) -> None:
        self._settings = settings = settings or MockEngineSettings()
        num_blocks = settings.capacity_tokens // settings.block_tokens
        if num_blocks == 0:
            raise ConfigError(
                f"capacity_tokens {settings.capacity_tokens!r} must hold a block of "
                f"{settings.block_tokens} tokens"
            )
        self._pool = BlockPool(
            num_blocks, settings.block_tokens, shares_prefixes=settings.shares_prefixes
        )
        self._cells = Cells(self._pool, num_blocks * settings.block_tokens)
        self._limits = _limits(settings, len(self._cells))
        self._noise = np.random.default_rng(0).random((NUM_NOISES, v.VOCAB_SIZE), np.float32)
        self._preferences = Preferences()
        self._states: dict[SequenceView, SequenceState] = {}
        self._thread: int | None = None
        self._is_closed = False
        self._is_crashed = False

    @property
    def limits(self) -> EngineLimits:
        """The limits of this engine; constant."""
        return self._limits

    @property
    def num_free_tokens(self) -> int:
        """The free space of the cache, in tokens: the capacity if no sequence is admitted."""
        return self._pool.num_free_blocks * self._pool.block_tokens

    def set_cache_listener(self, listener: CacheListener) -> None:
        """Report shared and removed blocks to a listener."""
        self._pool.listener = listener

    def read(self, prompt: Prompt) -> PromptPlan:
        """Determine the answer; image slots are atomic if the settings say so.

        Raises:
            RequestError: the prompt's directive is invalid.
        """
        slots = prompt.media if self._settings.images_are_atomic else ()
        spans = tuple(Span(slot.start, slot.stop) for slot in slots)
        return PromptPlan(spans, answer_to(prompt, self._settings, self._settings.replies))

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Admit a sequence; see :meth:`vlmkit.interfaces.engine.Cache.admit`."""
        self._check_call()
        if sequence in self._states:
            raise EngineError(f"sequence {sequence.id!r} is admitted already")
        if len(sequence) > self._limits.max_sequence_tokens:
            raise EngineError(
                f"sequence {sequence.id!r} has {len(sequence)} tokens; the longest may have "
                f"{self._limits.max_sequence_tokens}"
            )
        answer, spans = sequence.plan.state, sequence.plan.spans
        if not isinstance(answer, Answer):
            raise EngineError(f"the prompt of sequence {sequence.id!r} was not read")
        if len(self._states) == self._limits.max_sequences:
            return None
        if (admission := self._pool.admit(sequence)) is None:
            return None
        state = self._states[sequence] = SequenceState(answer, spans, len(sequence) + 1)
        state.fingerprints = fingerprints_of(sequence, sequence.tokens(0, admission.num_cached))
        state.num_committed_tokens = admission.num_cached
        for position, expected in enumerate(state.fingerprints):
            self._cells.expect(sequence, position, expected)
        return admission

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Reserve space for the first ``num_tokens``; return False if the cache is full."""
        self._check_call()
        state = self._state(sequence)
        if num_tokens <= state.num_reserved_tokens:
            return True
        if num_tokens > self._limits.max_sequence_tokens:
            return False
        if not self._pool.reserve(sequence, num_tokens):
            return False
        state.num_reserved_tokens = num_tokens
        return True

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Allow sharing the first ``num_tokens``."""
        self._check_call()
        state = self._state(sequence)
        start, known = state.num_committed_tokens, state.fingerprints
        before = known[start - 1] if start else 0
        own = fingerprints_of(sequence, sequence.tokens(start, num_tokens), start, before)
        if own != known[start:num_tokens]:
            raise EngineError(f"sequence {sequence.id!r} commits tokens that were not computed")
        state.num_committed_tokens = num_tokens
        self._pool.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Discard everything after the first ``num_tokens``."""
        self._check_call()
        state = self._state(sequence)
        if num_tokens < state.num_committed_tokens:
            raise EngineError(f"sequence {sequence.id!r} gives up tokens that were committed")
        self._pool.truncate(sequence, num_tokens)
        del state.fingerprints[num_tokens:]
        state.num_reserved_tokens = num_tokens

    def release(self, sequence: SequenceView) -> None:
        """Release the space of an admitted sequence."""
        self._check_call()
        self._state(sequence)
        self._pool.release(sequence)
        del self._states[sequence]

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items; see :meth:`vlmkit.interfaces.engine.Engine.forward`.

        Raises:
            EngineError: a script fails here, or the caller violated the protocol.
            RuntimeError: a script has crashed the engine, now or earlier.
        """
        return self._forward(items, items)

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        """Compute one token of each item; see :class:`vlmkit.interfaces.engine.OverlapsSteps`.

        Raises:
            EngineError: a script fails here, or the caller violated the protocol.
            RuntimeError: a script has crashed the engine, now or earlier.
        """
        if any(item.stop <= len(item.sequence) for item in items):
            raise EngineError("a sequence holds the token that only the device should know")
        tokens = zip(items, token_ids.tolist(), strict=True)
        drafts = [replace(item, drafts=(token_id,)) for item, token_id in tokens]
        return self._forward(items, drafts)

    def start_read(self, array: Any) -> Callable[[], Any]:
        """Return an array, which is in host memory."""
        return lambda: array

    def _forward(self, planned: Seq[WorkItem], items: Seq[WorkItem]) -> StepOutput:
        """Compute items, which hold the tokens of those that the loop planned."""
        self._check_call()
        check_step(planned, self._state, self._limits, are_known=items is planned)
        self._act([item for item in planned if item.num_rows])
        for item in items:
            self._compute(item)
        rows = {"logits": self._logits, "hidden": self._hidden}
        wanted = {kind: [i for i in items if i.num_rows and i.output == kind] for kind in rows}
        return StepOutput(**{kind: rows[kind](wanted[kind]) for kind in rows if wanted[kind]})

    def close(self) -> None:
        """Discard everything and refuse all later calls."""
        self._is_closed = True
        self._states.clear()
        self._cells.clear()

    def _check_call(self) -> None:
        if self._is_closed:
            raise EngineError("the mock engine is closed")
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        if thread != self._thread:
            raise EngineError("the mock engine is used from two threads")

    def _state(self, sequence: SequenceView) -> SequenceState:
        if (state := self._states.get(sequence)) is None:
            raise EngineError(f"sequence {sequence.id!r} is not admitted")
        return state

    def _act(self, wanted: Seq[WorkItem]) -> None:
        """Fail, crash or sleep as the scripts say."""
        latency_s = 0.0
        for item in wanted:
            script = self._states[item.sequence].answer.script
            index = item.stop - len(item.drafts) - item.sequence.num_prompt_tokens
            if script.fail_at_token == index:
                raise EngineError(f"the mock was told to fail at token {index}")
            self._is_crashed |= script.crash_at_token == index
            latency_s = max(latency_s, script.latency_s if index else script.prefill_latency_s)
        if self._is_crashed:
            raise RuntimeError("the mock was told to crash")
        if latency_s:
            time.sleep(latency_s)

    def _compute(self, item: WorkItem) -> None:
        sequence, start = item.sequence, item.start
        known = self._states[sequence].fingerprints
        before = known[start - 1] if start else 0
        if start:
            self._cells.expect(sequence, start - 1, before)
        new = fingerprints_of(sequence, item.token_ids, start, before)
        known[start:] = new
        self._cells.write(sequence, start, new)

    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        """Return rows of noise that depend on the whole input, with the script's logits on top.

        An answer that has left its script ends as soon as possible.
        """
        rows = _rows(wanted)
        logits = self._noise[self._noises(rows)]
        for number, (sequence, stop, drafts) in enumerate(rows):
            answer = self._states[sequence].answer
            if stop < sequence.num_prompt_tokens:
                logits[number, sequence.prompt.token_ids[stop]] = SCRIPTED_LOGIT
                continue
            progress = self._states[sequence].progress_at(sequence, stop, drafts)
            logits[number] = self._preferences.logits(progress, logits[number])
            if not progress.is_on_script:
                continue
            index = progress.num_tokens + progress.num_skipped
            is_call = answer.num_before_calls and index == 0
            logits[number, v.CALL if is_call else answer.repeated(index)] = RUNNER_UP_LOGIT
            logits[number, answer.token(index)] = SCRIPTED_LOGIT
        return logits

    def _hidden(self, wanted: Seq[WorkItem]) -> Any:
        """Return rows of noise that depend on the whole input."""
        return self._noise[self._noises(_rows(wanted)), : self._limits.hidden_size]

    def _noises(self, rows: "Seq[_Row]") -> list[int]:
        """Return the index of the noise of each row."""
        states = self._states
        return [states[sequence].fingerprints[stop - 1] % NUM_NOISES for sequence, stop, _ in rows]


_Row = tuple[SequenceView, int, Seq[int]]
"""A row's sequence, the end of the tokens that it depends on, and the drafts among these."""


def _rows(wanted: Seq[WorkItem]) -> list[_Row]:
    """Return the rows of some items."""
    return [
        (item.sequence, stop, item.drafts[: max(0, stop - (item.stop - len(item.drafts)))])
        for item in wanted
        for stop in range(item.stop - item.num_rows + 1, item.stop + 1)
    ]


def _limits(settings: MockEngineSettings, num_cells: int) -> EngineLimits:
    return EngineLimits(
        vocab_size=v.VOCAB_SIZE,
        max_sequence_tokens=min(settings.max_sequence_tokens, num_cells),
        max_sequences=settings.max_sequences,
        capacity_tokens=num_cells,
        max_chunk_tokens=settings.max_chunk_tokens,
        mixes_prefill_and_decode=settings.mixes_prefill_and_decode,
        prefix_block_tokens=settings.block_tokens if settings.shares_prefixes else 0,
        is_batch_invariant=True,
        max_item_rows=settings.max_chunk_tokens,
        max_draft_tokens=min(settings.max_draft_tokens, settings.max_chunk_tokens - 1),
        overlaps_steps=settings.overlaps_steps,
        hidden_size=HIDDEN_SIZE,
    )
