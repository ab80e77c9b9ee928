"""What an engine must release, and what may run in other threads."""

import dataclasses
import gc
import itertools
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from vlmkit.interfaces.engine import NUM_RECOMPUTED, NUM_REPLAYED, CountsRoom, CountsSteps
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt
from vlmkit_testing.contracts.arrays import to_numpy
from vlmkit_testing.contracts.engine_calls import calls_of
from vlmkit_testing.contracts.engine_host import EngineHost
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
        assert not _alive(watched)

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

    def test_counters_never_fall_and_keep_their_names(self, longest: Prompt) -> None:
        """Monitors compute rates of them, and read them after any call until the server ends."""
        engine = self.make()
        if not isinstance(engine, CountsSteps):
            engine.close()
            pytest.skip("this engine has no counters")
        host, seen = EngineHost(engine, self.features), [("read()", dict(engine.counters()))]

        def note(name: str) -> None:
            seen.append((name, dict(engine.counters())))

        for name in self._calls_of_two(host, longest):
            note(name)
        with ThreadPoolExecutor(1) as other:
            other.submit(note, "counters() in another thread").result()
        engine.close()
        note("close()")
        for (_, before), (name, after) in itertools.pairwise(seen):
            assert after.keys() == before.keys(), f"{name} changes the names of the counters"
            assert all(type(number) is int and number >= 0 for number in after.values())
            fallen = [each for each, number in before.items() if after[each] < number]
            assert not fallen, f"{fallen} fell after {name}"
            _check_graphs(before, after, name)

    def test_a_sequence_may_be_released_after_any_call(self, host: EngineHost) -> None:
        """Directly after it: all room comes back, and nothing refers to the sequence.

        Then an equal sequence, of the same scope, has the same logits.
        """
        prompt = min([each for each in self.asked if each.media] or self.asked, key=len)
        expected, room = host.last_logits(prompt), self.room(host)
        for number in itertools.count(1):
            watched: dict[str, weakref.ref[Any]] = {}
            scope = b"after %d" % number
            name = self._release_after(host, prompt, scope, number, watched)
            if name is None:
                break
            assert not _alive(watched), f"release() after {name} keeps {_alive(watched)}"
            has_room = (
                host.engine.num_free_tokens == host.engine.limits.capacity_tokens
                if isinstance(host.engine, CountsRoom)
                else self.room(host) == room
            )
            assert has_room, f"release() after {name} does not give all room back"
            again = host.sequence(prompt, scope=scope)
            assert host.admit(again) is not None
            self.agree(host.prefill(again), expected)
            host.engine.release(again)
        assert self.room(host) == room, "release() does not give all room back"

    # Helpers, each in a frame of its own, which keeps nothing

    def _weak_sequence(
        self, host: EngineHost, prompt: Prompt, scope: bytes, name: str, watched: dict[str, Any]
    ) -> EngineSequence:
        """Return a sequence; add weak references to it and to its inputs."""
        encoded = {i: _weakly(_Features, each) for i, each in host.encoded(prompt).items()}
        sequence = host.sequence(_weakly(_Prompt, prompt), scope=scope)
        sequence.features = encoded
        watched[f"a sequence {name}"] = weakref.ref(sequence)
        watched[f"the prompt {name}"] = weakref.ref(sequence.prompt)
        for index, features in encoded.items():
            watched[f"features {index} of the prompt {name}"] = weakref.ref(features)
        return sequence

    def _pass_by(self, host: EngineHost, prompt: Prompt, watched: dict[str, Any]) -> None:
        """Run and release a sequence; add weak references to it and to its inputs."""
        sequence = self._weak_sequence(host, prompt, b"gone", f"of {len(prompt)} tokens", watched)
        for _ in calls_of(host, sequence, self.answer_ids()[0]):
            pass
        host.engine.release(sequence)

    def _release_after(
        self,
        host: EngineHost,
        prompt: Prompt,
        scope: bytes,
        num_calls: int,
        watched: dict[str, Any],
    ) -> str | None:
        """Release a sequence after a number of calls.

        Returns:
            The name of the last call; None if there are fewer.
        """
        sequence = self._weak_sequence(host, prompt, scope, f"of {len(prompt)} tokens", watched)
        calls = calls_of(host, sequence, self.answer_ids()[0])
        names = list(itertools.islice(calls, num_calls))
        calls.close()
        host.engine.release(sequence)
        return names[-1] if len(names) == num_calls else None

    def _calls_of_two(self, host: EngineHost, longest: Prompt) -> Iterator[str]:
        """Make calls for a prompt, for one that finds it in the cache, and for refused ones."""
        for number in range(2):
            sequence = host.sequence(longest, scope=b"counted")
            for name in calls_of(host, sequence, self.answer_ids()[0]):
                yield f"{name} of sequence {number}"
            host.engine.release(sequence)
            yield f"release() of sequence {number}"
        admitted = self.fill(host, self.shortest)
        yield "a refused admit()"
        self.release(host, admitted)
        yield "release() of all"

    def _refuse(self, host: EngineHost, watched: dict[str, Any]) -> None:
        """Offer a sequence to a full engine, and drop it."""
        admitted = self.fill(host, self.shortest)
        refused = host.sequence(_weakly(_Prompt, self.shortest), scope=b"gone")
        watched["a sequence that was refused"] = weakref.ref(refused)
        watched["the prompt of one that was refused"] = weakref.ref(refused.prompt)
        assert host.admit(refused) is None
        del refused
        assert not _alive(watched), "a refused sequence is kept"
        self.release(host, admitted)


def _alive(watched: dict[str, weakref.ref[Any]]) -> list[str]:
    """Return the names of the objects that something refers to."""
    if any(reference() is not None for reference in watched.values()):
        gc.collect()  # which takes long where much is imported
    return [name for name, reference in watched.items() if reference() is not None]


def _check_graphs(before: Mapping[str, int], after: Mapping[str, int], name: str) -> None:
    """Fail unless the counters of recorded graphs count steps, and among them those repeated."""
    counters = NUM_REPLAYED, NUM_RECOMPUTED
    if not any(each in after for each in counters):
        return
    num_replayed, num_recomputed = (after.get(each, 0) for each in counters)
    assert num_recomputed <= num_replayed, "more steps are repeated than a graph computed"
    if "forward" not in name:
        changed = [each for each in counters if after.get(each) != before.get(each)]
        assert not changed, f"{name} computes nothing, but changes {changed}"


def _arrays(features: MediaFeatures) -> list[Any]:
    """Return copies of the arrays of a medium."""
    return [to_numpy(array) for array in (features.embeddings, *features.extra.values())]


def _weakly(kind: type[Any], value: Any) -> Any:
    """Return an equal object that supports weak references."""
    return kind(**{field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
