"""What an engine must do whatever comes next: random steps, and steps that fail.

Each row is compared with that of a second engine, which computes the same tokens alone and from
nothing. The steps are random, but the same in each run.
"""

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest

from vlmkit.interfaces.engine import CountsRoom, EmitsCacheEvents
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.step import WorkItem
from vlmkit_testing.contracts.engine_events_contract import EventRecorder
from vlmkit_testing.contracts.engine_host import EngineHost, Row, item_of
from vlmkit_testing.contracts.engine_sequence import EngineSequence
from vlmkit_testing.contracts.engine_subject import EngineSubject

SCOPES = (b"walk a", b"walk b")
MAX_ANSWER_TOKENS = 24
MAX_AHEAD_TOKENS = 8  # that are reserved and not used


class EngineWalkContract(EngineSubject):
    """Sequences that are admitted, computed, preempted and released in random order.

    Attributes:
        num_walk_steps: the random steps. A slow engine may take fewer.
    """

    num_walk_steps = 240

    def test_random_steps_agree_with_sequences_that_run_alone(self, host: EngineHost) -> None:
        """Whatever was admitted, drafted, refused, released and found in the cache before.

        Cache events, where there are any, describe the cache in each step.
        """
        other = self.make()
        try:
            walk = _Walk(self, host, EngineHost(other, self.features))
            for _ in range(self.num_walk_steps):
                walk.step()
            walk.end()
        finally:
            other.close()

    def test_a_step_that_fails_leaves_nothing_behind(self, host: EngineHost) -> None:
        """Its room comes back, and later requests get their own images.

        The features of a medium are missing; or their last row is, which may raise.
        """
        pictured = [prompt for prompt in self.asked if prompt.media]
        if not pictured:
            pytest.skip("prompts() has no prompt with media")
        prompt = min(pictured, key=len)
        expected, beside = host.last_logits(prompt), host.last_logits(self.shortest)
        room = self.room(host)
        with pytest.raises(Exception):  # noqa: B017 - an engine may raise anything
            self._fail(host, prompt, {})
        with suppress(Exception):
            self._fail(host, prompt, self._cut_features(prompt))
        again = host.sequence(prompt, scope=b"failed")
        assert host.admit(again) == 0, "tokens of a step that failed are found in the cache"
        self.agree(host.prefill(again), expected)
        host.engine.release(again)
        self.agree(host.last_logits(self.shortest), beside)
        assert self.room(host) == room, "a step that failed keeps room"

    # Helpers

    def _fail(
        self, host: EngineHost, prompt: Prompt, features: Mapping[int, MediaFeatures]
    ) -> None:
        """Compute a prompt with other features, without a commit, and release it."""
        sequence = host.sequence(prompt, scope=b"failed")
        assert host.admit(sequence) == 0
        sequence.features = features
        try:
            while sequence.num_done < len(sequence):
                host.step([host.chunk(sequence)], commits=False)
        finally:
            host.engine.release(sequence)

    def _cut_features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        """Return the features of a prompt's media, each without its last row."""
        return {
            index: dataclasses.replace(
                each, num_tokens=each.num_tokens - 1, embeddings=cast(Any, each.embeddings)[:-1]
            )
            for index, each in self.features(prompt).items()
        }


class _Walk:
    """Random steps of one engine, and the expected rows.

    Args:
        subject: the contract.
        host: the engine under test.
        reference: another engine of the same model.
    """

    def __init__(self, subject: EngineSubject, host: EngineHost, reference: EngineHost) -> None:
        self._subject, self._host, self._reference = subject, host, reference
        self._engine, self._limits = host.engine, host.engine.limits
        self._prompts = subject.asked
        first = subject.answer_ids()[0]
        self._tokens = (first, subject.another(first))
        self._random = random.Random(0)
        self._active: list[EngineSequence] = []
        self._preempted: list[EngineSequence] = []
        self._rows: dict[tuple[int, tuple[int, ...]], Row] = {}
        self._most = min(self._limits.max_sequence_tokens, subject.most_tokens) - 1
        self._room = subject.room(host)
        self._recorder: EventRecorder | None = None
        if self._limits.prefix_block_tokens and isinstance(self._engine, EmitsCacheEvents):
            self._recorder = EventRecorder(self._limits)
            self._engine.set_cache_listener(self._recorder)

    def step(self) -> None:
        """Do one thing at random, and compare what is computed."""
        assert self._engine.limits == self._limits, "the limits are constant"
        kind = self._random.random()
        if not self._active or kind < 0.2:
            self._admit()
        elif kind < 0.26:
            self._preempted.append(self._remove())
        elif kind < 0.32:
            self._remove()
        elif kind < 0.38:
            self._reserve()
        else:
            self._compute()

    def end(self) -> None:
        """Release all, and require all room."""
        while self._active:
            self._remove()
        if isinstance(self._engine, CountsRoom):
            assert self._engine.num_free_tokens == self._limits.capacity_tokens
        for prompt, scope in itertools.product(self._prompts, SCOPES):
            answer = self._tokens[: max(0, self._most - len(prompt))]
            self._start(self._host.sequence(prompt, answer, scope=scope))
            self._remove()
        assert self._subject.room(self._host) == self._room, "room is lost"

    # Steps

    def _admit(self) -> None:
        """Admit a sequence, a preempted one perhaps; an empty engine has room for it."""
        if self._preempted and self._random.random() < 0.5:
            sequence = self._preempted.pop(self._random.randrange(len(self._preempted)))
        else:
            prompt = self._random.choice(self._prompts)
            answer = self._random.choices(self._tokens, k=self._random.randrange(6))
            scope = self._random.choice((*SCOPES, None))
            sequence = self._host.sequence(prompt, answer[: self._most - len(prompt)], scope=scope)
        self._start(sequence)

    def _start(self, sequence: EngineSequence) -> None:
        """Admit a sequence, if there is room, and compare what is found of it with the events."""
        check = None if self._recorder is None else self._recorder.expectation(sequence)
        if (num_cached := self._host.admit(sequence)) is not None:
            if check is not None:
                check(num_cached)
            self._active.append(sequence)
            assert len(self._active) <= self._limits.max_sequences
        elif not self._active:
            raise AssertionError("an empty engine has no room for one sequence")

    def _remove(self) -> EngineSequence:
        """Release a sequence, and return it."""
        sequence = self._active.pop(self._random.randrange(len(self._active)))
        self._engine.release(sequence)
        return sequence

    def _reserve(self) -> None:
        """Reserve tokens that are perhaps never computed."""
        sequence = self._random.choice(self._active)
        ahead = self._random.randrange(MAX_AHEAD_TOKENS)
        if len(sequence) + ahead <= self._most:
            self._engine.reserve(sequence, len(sequence) + ahead)

    def _compute(self) -> None:
        """Compute one step of several sequences, and compare its rows."""
        chosen = self._random.sample(self._active, self._random.randint(1, len(self._active)))
        is_chunk = _is_prefilling(chosen[0])
        if not self._limits.mixes_prefill_and_decode:
            same = [each for each in chosen if _is_prefilling(each) == is_chunk]
            chosen = same[:1] if is_chunk else same
        items = [item for each in chosen if (item := self._item(each)) is not None]
        if not items:
            return
        rows = self._host.step(tuple(items))
        start = 0
        for item in items:
            self._compare(item, rows[start : start + item.num_rows])
            start += item.num_rows
            if item.drafts:
                self._host.accept(item, self._random.randint(0, len(item.drafts)))

    def _item(self, sequence: EngineSequence) -> WorkItem | None:
        """Return the next item of a sequence; None if it has ended or has no room."""
        if _is_prefilling(sequence):
            return self._host.chunk(
                sequence, self._random.randint(1, self._limits.max_chunk_tokens)
            )
        if len(sequence) >= min(self._most, sequence.num_prompt_tokens + MAX_ANSWER_TOKENS):
            return None
        drafts: tuple[int, ...] = ()
        if self._random.random() < 0.5:
            most = min(self._limits.max_draft_tokens, self._most - len(sequence) - 1, 4)
            drafts = tuple(self._random.choices(self._tokens, k=self._random.randint(0, most)))
        start, num_tokens = len(sequence), 1 + len(drafts)
        if not self._engine.reserve(sequence, start + num_tokens):
            return None
        sequence.answer.append(self._random.choice(self._tokens))
        return item_of(sequence, start, num_tokens, num_tokens, drafts)

    # What is expected

    def _compare(self, item: WorkItem, rows: Row) -> None:
        sequence = cast(EngineSequence, item.sequence)
        answer = [*sequence.answer, *item.drafts]
        for row, stop in zip(rows, _stops(item), strict=True):
            known = answer[: stop - sequence.num_prompt_tokens]
            self._subject.agree(row, self._expected(sequence.prompt, tuple(known)))

    def _expected(self, prompt: Prompt, answer: tuple[int, ...]) -> Row:
        """Return the logits after an answer, which an engine of its own computes."""
        place = next(i for i, each in enumerate(self._prompts) if each is prompt)
        if (place, answer) not in self._rows:
            self._rows[place, answer] = self._reference.last_logits(prompt, answer)
        return self._rows[place, answer]


def _is_prefilling(sequence: EngineSequence) -> bool:
    """Whether tokens before the last one are not computed, or a first row is missing."""
    return sequence.num_done < len(sequence)


def _stops(item: WorkItem) -> Iterator[int]:
    """Yield for each row how many tokens it follows."""
    return iter(range(item.stop - item.num_rows + 1, item.stop + 1))
