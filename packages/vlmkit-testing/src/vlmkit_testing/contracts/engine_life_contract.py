"""What an engine must release, and what may run in other threads."""

import dataclasses
import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from vlmkit.interfaces.engine import CountsSteps
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt
from vlmkit_testing.contracts.arrays import to_numpy
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_testing.contracts.engine_overlap_contract import (
    on_device,
    overlapping,
    started_items,
)
from vlmkit_testing.contracts.engine_sequence import EngineSequence
from vlmkit_testing.contracts.engine_subject import EngineSubject

NUM_ROUNDS_BESIDE_READERS = 3
BREATH_S = 0.001  # of a reader, which would take the interpreter from each step again and again


class _Prompt(Prompt):
    """A prompt that can be referred to weakly."""


class _Features(MediaFeatures):
    """Features that can be referred to weakly."""


class EngineLifeContract(EngineSubject):
    """Plans beside the loop, release, close."""

    def test_prompts_are_read_while_others_run(self, host: EngineHost) -> None:
        """Worker threads plan prompts beside the loop's steps; neither disturbs the other."""
        prompts = self.asked
        expected = [host.last_logits(prompt) for prompt in prompts]
        spans = [host.engine.read(prompt).spans for prompt in prompts]
        stop, found = threading.Event(), []

        def read() -> None:
            is_over = False
            while not is_over:  # once at least, however busy the machine is
                found.append([host.engine.read(prompt).spans for prompt in prompts])
                is_over = stop.wait(BREATH_S)

        with ThreadPoolExecutor(2) as workers:
            readers = [workers.submit(read) for _ in range(2)]
            try:
                for _ in range(NUM_ROUNDS_BESIDE_READERS):
                    for prompt, row in zip(prompts, expected, strict=True):
                        self.agree(host.last_logits(prompt), row)
            finally:
                stop.set()
            for reader in readers:
                reader.result()
        assert all(each == spans for each in found), "a prompt was read in two ways"

    def test_reading_a_prompt_changes_nothing_for_another(self, host: EngineHost) -> None:
        """A plan holds all that was computed of its prompt, whatever was planned since."""
        for prompt in self.asked:
            expected = host.last_logits(prompt)
            sequence = self.admitted(host, prompt)
            for other in sorted(self.asked, key=len, reverse=True):
                host.engine.read(other)
            self.agree(host.prefill(sequence), expected)
            host.engine.release(sequence)

    def test_features_stay_as_they_are(self, host: EngineHost) -> None:
        """A cache holds them for later requests."""
        pictured = [prompt for prompt in self.asked if prompt.media]
        if not pictured:
            pytest.skip("prompts() has no prompt with media")
        for prompt in pictured:
            before = [_arrays(each) for each in host.encoded(prompt).values()]
            host.last_logits(prompt, self.answer_ids()[:1])
            host.last_logits(prompt, chunk_tokens=max(1, len(prompt) // 2))
            after = [_arrays(each) for each in host.encoded(prompt).values()]
            for arrays, known in zip(after, before, strict=True):
                for array, wanted in zip(arrays, known, strict=True):
                    np.testing.assert_array_equal(array, wanted)

    def test_a_released_sequence_is_forgotten(self, host: EngineHost) -> None:
        """After its release, nothing refers to a sequence, its features or its prompt.

        The same holds for a refused sequence, which may be aborted while it waits.
        """
        watched: dict[str, weakref.ref[Any]] = {}
        for prompt in self.asked:
            self._pass_by(host, prompt, watched)
        self._refuse(host, watched)
        if any(reference() is not None for reference in watched.values()):
            gc.collect()  # which takes long where much is imported
        assert not [name for name, reference in watched.items() if reference() is not None]

    def test_closing_ends_one_engine_alone(self, host: EngineHost) -> None:
        """``close`` may run in any thread."""
        other, errors = self.make(), []

        def close() -> None:
            try:
                other.close()
            except Exception as error:  # noqa: BLE001 - an engine may raise anything
                errors.append(error)

        expected = host.last_logits(self.shortest)
        beside = EngineHost(other, self.features)
        self.agree(beside.last_logits(self.shortest), expected)
        self.admitted(beside, self.shortest)  # a loop that fails ends with answers
        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        self.agree(host.last_logits(self.shortest), expected)

    # Helpers, each in a frame of its own, which keeps nothing

    def _pass_by(self, host: EngineHost, prompt: Prompt, watched: dict[str, Any]) -> None:
        """Run and release a sequence; return weak references to it and to its inputs."""
        encoded = {i: _weakly(_Features, each) for i, each in host.encoded(prompt).items()}
        sequence = host.sequence(_weakly(_Prompt, prompt), scope=b"gone")
        sequence.features = encoded
        name = f"of {len(prompt)} tokens"
        watched[f"a sequence {name}"] = weakref.ref(sequence)
        watched[f"the prompt {name}"] = weakref.ref(sequence.prompt)
        for index, features in encoded.items():
            watched[f"features {index} of the prompt {name}"] = weakref.ref(features)
        assert host.admit(sequence) is not None
        host.prefill(sequence)
        for token_id in self.answer_ids():
            host.decode(sequence, token_id)
        self._run_on(host, sequence)
        host.engine.release(sequence)

    def _run_on(self, host: EngineHost, sequence: EngineSequence) -> None:
        """Compute refused drafts, a hidden state, and a step that is discarded, if it may."""
        limits, token_id = host.engine.limits, self.answer_ids()[0]
        if limits.max_draft_tokens:
            item = host.next_item(sequence, token_id, (token_id,))
            host.step([item])
            host.accept(item, 0)
        if limits.hidden_size:
            host.hidden([structs.replace(host.next_item(sequence, token_id), output="hidden")])
            sequence.num_done = len(sequence)
        if limits.overlaps_steps:
            tokens = on_device(host, [sequence], [token_id])
            overlapping(host.engine).forward_next(started_items(host, [sequence]), tokens)

    def _refuse(self, host: EngineHost, watched: dict[str, Any]) -> None:
        """Offer a sequence to a full engine, and drop it."""
        admitted = self.fill(host, self.shortest)
        refused = host.sequence(_weakly(_Prompt, self.shortest), scope=b"gone")
        watched["a sequence that was refused"] = weakref.ref(refused)
        watched["the prompt of one that was refused"] = weakref.ref(refused.prompt)
        assert host.admit(refused) is None
        del refused
        if watched["a sequence that was refused"]() is not None:
            gc.collect()
        assert watched["a sequence that was refused"]() is None, "who was refused is kept"
        self.release(host, admitted)

    def test_counters_never_fall_and_keep_their_names(self, longest: Prompt) -> None:
        """Monitors compute rates of them, and read them until the server ends."""
        engine = self.make()
        if not isinstance(engine, CountsSteps):
            engine.close()
            pytest.skip("this engine has no counters")
        seen = [dict(engine.counters())]
        EngineHost(engine, self.features).last_logits(longest)
        with ThreadPoolExecutor(1) as other:
            seen.append(dict(other.submit(engine.counters).result()))
        engine.close()
        seen.append(dict(engine.counters()))
        for before, after in itertools.pairwise(seen):
            assert after.keys() == before.keys()
            assert all(type(number) is int and number >= 0 for number in before.values())
            assert all(after[name] >= number for name, number in before.items())


def _arrays(features: MediaFeatures) -> list[Any]:
    """Return copies of the arrays of a medium."""
    return [to_numpy(array) for array in (features.embeddings, *features.extra.values())]


def _weakly(kind: type[Any], value: Any) -> Any:
    """Return an equal object that supports weak references."""
    return kind(**{field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
