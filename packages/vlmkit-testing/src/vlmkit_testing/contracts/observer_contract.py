"""What every observer must do."""

import gc
import logging
import math
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Collection, Sequence as Seq
from concurrent.futures import ThreadPoolExecutor

import pytest

from vlmkit.errors import EngineError, OutOfMemory, QueueFull, RequestError, VlmkitError
from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts, StepFacts
from vlmkit.interfaces.sequence import Task
from vlmkit.types.completion import Chunk, FinishReason, Timings, Usage
from vlmkit.types.delta import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from vlmkit.types.sample import Logprob, Sample
from vlmkit.types.sampling import SamplingParams

STEP = StepFacts(
    num_sequences=2,
    num_tokens=9,
    num_sampled=1,
    num_preempted=0,
    num_running=2,
    num_waiting=0,
    step_s=0.01,
)
ODD = ('"', "\n", "\\", "é", "\ud800", "\0", "{x}%s", "x" * 9999, "")
NO_STEP = StepFacts(0, 0, 0, 0, 0, 0, 0.0)
DELTAS: tuple[tuple[Delta, ...], ...] = (
    (ReasoningDelta("hm"),),
    (),
    (TextDelta("a"), TextDelta("")),
    (ToolCallDelta(0, "call-1", "find"), ToolCallDelta(0, arguments="{}")),
)
ERRORS: tuple[VlmkitError, ...] = (
    EngineError("the engine failed"),
    RequestError("it is wrong", param="messages", hint="ask otherwise"),
    OutOfMemory("this request"),
    QueueFull("wait"),
    VlmkitError(""),
)
SECRET_TOKENS = (424_200_001, 424_200_002, 424_200_003)
NUM_KINDS = 400  # of errors, each with a name of its own
NUM_WARM, NUM_REQUESTS, MAX_LEFT_BYTES = 200, 2000, 8_000


class ObserverContract:
    """Inherit it, override :meth:`make`, and run pytest.

    Attributes:
        close_s: how long its threads may take to end after ``close``.
    """

    close_s = 60.0

    def make(self) -> Observer:
        """Return a new observer."""
        raise NotImplementedError

    def block_keys(self, observer: Observer) -> Collection[bytes] | None:  # noqa: ARG002
        """Return the keys of the cache blocks that an observer knows; None if it keeps none."""
        return None

    def test_it_takes_the_whole_life_of_a_request(self) -> None:
        """Also with an empty answer, and with choices that end for different reasons."""
        observer = self.make()
        self._serve(observer, self._request(n=2), reasons=("stop", "length"))
        observer.step(STEP, 5.0)
        request = self._request()
        observer.accepted(request, 6.0)
        observer.finished(request, self._end(("abort",), num_tokens=0), 7.0)
        observer.close()

    @pytest.mark.parametrize("task", ["generate", "score", "embed"])
    def test_it_accepts_every_kind_of_chunk(self, task: Task) -> None:
        """Reasoning, tool calls and scores come in chunks; an embedding has none."""
        observer = self.make()
        request = RequestFacts("req-1", "model", "", SamplingParams(), 7, task=task, is_chat=False)
        observer.accepted(request, 1.0)
        if task != "embed":
            observer.first_token(request, 2.0)
            likely = (Logprob(1, -0.5), Logprob(2, -math.inf))
            for deltas in DELTAS:
                chunk = Chunk(0, deltas, (Sample(1, -0.5, likely, 1), Sample(2)))
                observer.tokens(request, chunk, 2.0)
            observer.tokens(request, Chunk(0, (), (), "stop", stop_string="\n"), 2.0)
        observer.finished(request, RequestEnd(("stop",), Usage(), Timings()), 2.0)
        observer.close()

    def test_a_request_may_fail_at_any_time(self) -> None:
        """Before its acceptance, before its first token or after it, with any error."""
        observer = self.make()
        for error in ERRORS:
            for num_events in range(4):
                request = self._request()
                if num_events > 0:
                    observer.accepted(request, 1.0)
                if num_events > 1:
                    observer.first_token(request, 2.0)
                if num_events > 2:
                    observer.tokens(request, Chunk(0, (TextDelta("a"),), (Sample(1),)), 2.0)
                observer.failed(request, error, 3.0)
        observer.close()

    def test_a_step_may_be_empty(self) -> None:
        """It may also take no measurable time."""
        observer = self.make()
        observer.step(NO_STEP, 1.0)
        observer.step(STEP, 1.0)
        assert all(map(math.isfinite, observer.stats().values()))
        observer.close()

    def test_cache_blocks_may_change_in_any_way(self) -> None:
        """A child without its parent, the whole index again, and keys that it does not know."""
        observer = self.make()
        first, second = CacheBlock(b"1", b"", (1, 2)), CacheBlock(b"2", b"1", (3, 4), (b"d" * 32,))
        for change in (
            CacheChange(is_cleared=True),
            CacheChange((first, second)),
            CacheChange(removed=(first.key,)),
            CacheChange((first,), (second.key, b"unknown")),
            CacheChange((second, first), is_cleared=True),
            CacheChange((CacheBlock(b"4", b"3", (7,), scope=b"t"),), (first.key, second.key)),
        ):
            observer.blocks(change, 1.0)
            assert all(map(math.isfinite, observer.stats().values()))
        observer.close()

    def test_a_change_with_a_key_in_both_parts_equals_two_changes(self) -> None:
        """The removed blocks leave the index first, and then the stored ones enter it.

        A cleared index is emptied before both.
        """
        first, second = CacheBlock(b"1", b"", (1, 2)), CacheBlock(b"2", b"", (3, 4))
        keys = first.key, second.key
        for begin in (CacheChange((first,), is_cleared=True), CacheChange(is_cleared=True)):
            for is_cleared in (False, True):
                together = (
                    CacheChange((first,), keys[:1], is_cleared),
                    CacheChange((second,), keys[1:]),
                )
                apart = (CacheChange((), keys, is_cleared), CacheChange((first, second)))
                found = [self._after(begin, changes) for changes in (together, apart)]
                assert found[0] == found[1], "a key in both parts is stored at the end"

    def test_tokens_of_cache_blocks_stay_out_of_logs_and_numbers(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They are what clients asked and were answered; logs and metrics have other readers."""
        caplog.clear()
        observer = self.make()
        with caplog.at_level(logging.DEBUG):
            for number, token_id in enumerate(SECRET_TOKENS):
                block = CacheBlock(b"%d" % number, b"", (token_id,))
                observer.blocks(CacheChange((block,), is_cleared=number == 0), 1.0)
            numbers = dict(observer.stats())
            observer.close()
        published = caplog.text + repr(numbers)
        assert not any(str(token_id) in published for token_id in SECRET_TOKENS)

    def test_requests_may_overlap_and_share_an_id(self) -> None:
        """Ids are client input; requests are distinguished by object identity."""
        observer = self.make()
        one, other = self._request(), self._request()
        observer.accepted(one, 1.0)
        observer.accepted(other, 1.0)
        for request in (one, other):
            observer.first_token(request, 2.0)
        for request in (one, other):
            observer.finished(request, self._end(), 3.0)
        observer.close()

    @pytest.mark.parametrize("text", ODD)
    def test_names_may_hold_any_character(self, text: str) -> None:
        """Ids, tenants and traces are client input."""
        observer = self.make()
        request = RequestFacts(text, text or "model", text, SamplingParams(), 7, trace=text)
        self._serve(observer, request)
        observer.failed(request, EngineError("the engine failed"), 4.0)
        observer.close()

    def test_events_come_in_a_thread_of_its_own(self) -> None:
        """Not the thread that built it; its numbers are read in a third."""
        observer = self.make()
        with ThreadPoolExecutor(1) as own, ThreadPoolExecutor(1) as other:
            for _ in range(2):
                own.submit(self._serve, observer, self._request()).result()
                own.submit(observer.failed, self._request(), ERRORS[0], 4.0).result()
                own.submit(observer.step, STEP, 5.0).result()
                numbers = other.submit(observer.stats).result()
                assert all(map(math.isfinite, numbers.values()))
            own.submit(observer.close).result()
            other.submit(observer.stats).result()

    # Memory

    def test_a_finished_request_is_released(self) -> None:
        """An observer runs for months. It must release errors, too, which refer to much memory."""
        observer = self.make()
        observer.stats()
        gone: list[weakref.ref[object]] = []
        for error in (None, EngineError("the engine failed")):
            request = self._request()
            gone.append(weakref.ref(request))
            if error is None:
                self._serve(observer, request)
            else:
                gone.append(weakref.ref(error))
                observer.accepted(request, 1.0)
                observer.first_token(request, 2.0)
                observer.tokens(request, Chunk(0, (TextDelta("a"),), (Sample(1),)), 2.0)
                observer.failed(request, error, 2.0)
            del request, error
        gc.collect()
        assert [ref() for ref in gone] == [None] * 3
        observer.close()

    def test_nothing_goes_on_when_it_is_closed(self) -> None:
        """It releases its threads, too."""
        before = set(threading.enumerate())
        observer = self.make()
        self._serve(observer, self._request())
        observer.close()
        deadline = time.monotonic() + self.close_s
        while set(threading.enumerate()) - before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert set(threading.enumerate()) <= before, "a thread goes on"

    def test_memory_does_not_grow_with_the_requests(self) -> None:
        """Nor with the number of different ids, traces and seeds."""
        observer = self.make()
        self._serve_many(observer, range(NUM_WARM))
        tracemalloc.start()
        try:
            self._serve_many(observer, range(NUM_WARM, 2 * NUM_WARM))
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            self._serve_many(observer, range(2 * NUM_WARM, NUM_REQUESTS))
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        observer.close()
        assert grown < MAX_LEFT_BYTES

    @pytest.mark.parametrize("is_cleared", [False, True])
    def test_memory_does_not_grow_with_the_cache_blocks(self, *, is_cleared: bool) -> None:
        """A removed block is forgotten, and so is every block of a cleared cache."""
        observer = self.make()
        self._change_blocks(observer, range(NUM_WARM), is_cleared=is_cleared)
        tracemalloc.start()
        try:
            self._change_blocks(observer, range(NUM_WARM, 2 * NUM_WARM), is_cleared=is_cleared)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            self._change_blocks(observer, range(2 * NUM_WARM, NUM_REQUESTS), is_cleared=is_cleared)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        observer.close()
        assert grown < MAX_LEFT_BYTES

    # Numbers

    def test_its_numbers_are_numbers_at_any_time(self) -> None:
        """From the start until after ``close``; their names are strings."""
        observer = self.make()
        numbers = [dict(observer.stats())]
        self._serve(observer, self._request())
        numbers.append(dict(observer.stats()))
        observer.close()
        numbers.append(dict(observer.stats()))
        for name, number in (pair for found in numbers for pair in found.items()):
            assert isinstance(name, str)
            assert isinstance(number, int | float)
            assert math.isfinite(number)

    def test_returned_numbers_never_change(self) -> None:
        """Another thread than that of the events reads them."""
        observer = self.make()
        self._serve(observer, self._request())
        told = observer.stats()
        before = dict(told)
        self._serve(observer, self._request(n=2), reasons=("length", "abort"))
        observer.failed(self._request(), ERRORS[2], 9.0)
        assert dict(told) == before
        observer.close()

    def test_its_numbers_may_be_read_while_events_arrive(self) -> None:
        """Also while a name becomes a number for the first time, as for a new kind of error."""
        observer, problems = self.make(), list[Exception]()
        is_read, is_over = threading.Event(), threading.Event()

        def read() -> None:
            while not is_over.is_set():
                is_read.set()
                try:
                    observer.stats()
                except Exception as error:  # noqa: BLE001 - reported below
                    problems.append(error)
                    return

        reading, before = threading.Thread(target=read), sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            reading.start()
            for number in range(NUM_KINDS):
                kind = type(f"Kind{number}Error", (EngineError,), {})
                observer.failed(self._request(), kind("the engine failed"), 3.0)
                self._serve(observer, self._request())
                if problems:
                    break
                if number % 10 == 0:  # what follows happens during a read
                    is_read.clear()
                    is_read.wait(1.0)
        finally:
            is_over.set()
            reading.join()
            sys.setswitchinterval(before)
        observer.close()
        assert not problems

    def test_two_observers_count_apart(self) -> None:
        """Each pipeline has its own."""
        one, other = self.make(), self.make()
        before = dict(other.stats())
        self._serve(one, self._request())
        assert dict(other.stats()) == before
        one.close()
        self._serve(other, self._request())
        other.close()

    # Helpers

    def _after(self, begin: CacheChange, changes: Seq[CacheChange]) -> list[object]:
        """Return the numbers and keys of a new observer after changes of cache blocks.

        They are returned after all changes, and after one key more is removed.
        """
        observer, found = self.make(), list[object]()
        removed = CacheChange(removed=(b"1",))
        for number, change in enumerate((begin, *changes, removed)):
            observer.blocks(change, 1.0)
            if number >= len(changes):
                keys = self.block_keys(observer)
                found.append((dict(observer.stats()), None if keys is None else sorted(keys)))
        observer.close()
        return found

    def _request(
        self,
        *,
        id: str = "req-1",  # noqa: A002 - the field's name
        n: int = 1,
        trace: str = "",
        seed: int | None = None,
    ) -> RequestFacts:
        params = SamplingParams(n=n, seed=seed)
        return RequestFacts(id, "model", "", params, 7, (4,), trace=trace)

    def _end(
        self, reasons: tuple[FinishReason, ...] = ("stop",), *, num_tokens: int = 2
    ) -> RequestEnd:
        return RequestEnd(reasons, Usage(7, num_tokens, 0, (4,)), Timings(0.1, 0.0, 0.2, 0.3))

    def _serve(
        self,
        observer: Observer,
        request: RequestFacts,
        reasons: tuple[FinishReason, ...] = ("stop",),
    ) -> None:
        observer.accepted(request, 1.0)
        observer.first_token(request, 2.0)
        for index, reason in enumerate(reasons):
            observer.tokens(request, Chunk(index, (TextDelta("a"),), (Sample(1),)), 2.0)
            observer.tokens(request, Chunk(index, (), (Sample(2),), reason), 3.0)
        observer.finished(request, self._end(reasons), 3.0)

    def _change_blocks(self, observer: Observer, numbers: Seq[int], *, is_cleared: bool) -> None:
        """Store a block for each number, and remove it or clear the cache."""
        for number in numbers:
            key = b"%032d" % number
            observer.blocks(CacheChange((CacheBlock(key, b"", (number,)),)), 1.0)
            removed = () if is_cleared else (key,)
            observer.blocks(CacheChange(removed=removed, is_cleared=is_cleared), 2.0)

    def _serve_many(self, observer: Observer, numbers: Seq[int]) -> None:
        for number in numbers:
            name = f"{number:032}"
            request = self._request(id=f"req-{name}", trace=name, seed=number)
            if number % 4:
                self._serve(observer, request)
            else:
                observer.failed(request, EngineError(f"failed {number}"), 2.0)
            observer.step(STEP, 3.0)
