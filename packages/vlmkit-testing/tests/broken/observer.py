"""Observers that break one promise each, derived from the counters."""

import logging
import math
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from broken.broken import Broken, Table
from vlmkit.errors import EngineError, RequestError, VlmkitError
from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts, StepFacts
from vlmkit.running.observers.builtin import Counters
from vlmkit.types.completion import Chunk
from vlmkit_testing import ObserverContract


class KeepsFinishedRequests(Counters):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[RequestFacts] = []

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        self.requests.append(request)


class ExpectsAnAcceptedRequest(Counters):
    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        assert self._counts["num_accepted"]


class DistinguishesRequestsByTheirIds(Observer):
    def __init__(self) -> None:
        self.begun: set[str] = set()

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        assert request.id not in self.begun
        self.begun.add(request.id)

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self.begun.remove(request.id)


class IteratesOverChangingNumbers(Counters):
    def stats(self) -> Mapping[str, float]:
        found = {}
        for name in self._counts:
            time.sleep(0.0005)  # as if there were many
            found[name] = self._counts[name]
        return found


class DividesByZero(Counters):
    def stats(self) -> Mapping[str, float]:
        return {"mean": float("nan"), **super().stats()}


class CountsForAllInstances(Counters):
    everybody = Counters()

    def __init__(self) -> None:
        self.__dict__ = self.everybody.__dict__


class EncodesNamesInLatin(Observer):
    def accepted(self, request: RequestFacts, at_s: float) -> None:
        request.id.encode("ascii")


class NeedsAToken(Observer):
    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        assert end.timings.decode_s / end.usage.completion_tokens


class ExpectsText(Counters):
    num_letters = 0

    def tokens(self, request: RequestFacts, chunk: Chunk, at_s: float) -> None:
        self.num_letters += sum(len(delta.text) for delta in chunk.deltas)  # type: ignore[union-attr]


class ExpectsAFirstToken(Counters):
    begun: RequestFacts | None = None

    def first_token(self, request: RequestFacts, at_s: float) -> None:
        self.begun = request

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        assert self.begun is request
        self.begun = None


class ExpectsTwoErrors(Counters):
    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        self._counts[{EngineError: "engine", RequestError: "request"}[type(error)]] += 1


class DividesByTheTimeOfAStep(Counters):
    def step(self, step: StepFacts, at_s: float) -> None:
        self._seconds["tokens_per_s"] = step.num_tokens / step.step_s


class ReturnsInfinity(Counters):
    def step(self, step: StepFacts, at_s: float) -> None:
        rate = step.num_tokens / step.step_s if step.step_s else math.inf
        self._seconds["most_per_s"] = max(rate, self._seconds.get("most_per_s", 0.0))


class KeepsErrorsOfRequests(Counters):
    last: VlmkitError | None = None

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        self.last = error


class CountsEachId(Counters):
    def __init__(self) -> None:
        super().__init__()
        self.by_id: Counter[str] = Counter()

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        self.by_id[request.id] += 1


class KeepsTheTimeOfEveryStep(Counters):
    def __init__(self) -> None:
        super().__init__()
        self.times_s: list[float] = []

    def step(self, step: StepFacts, at_s: float) -> None:
        self.times_s.append(at_s + step.step_s * len(self.times_s))


class NamesNumbersByIntegers(Counters):
    def stats(self) -> Any:
        return {**super().stats(), 99: 1.0}


class ReturnsNumbersAsStrings(Counters):
    def stats(self) -> Any:
        return {name: str(number) for name, number in super().stats().items()}


class ReturnsItsLiveCounters(Counters):
    def stats(self) -> Mapping[str, float]:
        return self._counts


class OpensItsFileInTheConstructor(Counters):
    def __init__(self) -> None:
        super().__init__()
        self._file = sqlite3.connect(":memory:")

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self._file.execute("select 1")


class CountsInOneThread(Counters):
    def __init__(self) -> None:
        super().__init__()
        self._own = threading.local()

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self._own.num = getattr(self._own, "num", 0) + 1
        self._told = True

    def stats(self) -> Mapping[str, float]:
        return {"num": float(self._own.num)} if hasattr(self, "_told") else {}


class KeepsTraces(Counters):
    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[str, float] = {}

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        self._begun[request.trace] = at_s


class CountsEachSeed(Counters):
    def __init__(self) -> None:
        super().__init__()
        self._seeds = Counter[int | None]()

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        self._seeds[request.params.seed] += 1


class KeepsLatencies(Counters):
    """Keeps a list for a median: eight bytes for each request."""

    def __init__(self) -> None:
        super().__init__()
        self._times_s: list[float] = []

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self._times_s.append(end.timings.decode_s)


class ForgetsOnlyFinishedRequests(Counters):
    """Keeps requests that fail during their answer."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[RequestFacts, float] = {}

    def first_token(self, request: RequestFacts, at_s: float) -> None:
        self._begun[request] = at_s

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self._begun.pop(request, None)


class ExpectsKnownParents(Counters):
    def __init__(self) -> None:
        super().__init__()
        self._keys = {b""}

    def blocks(self, change: CacheChange, at_s: float) -> None:
        self._keys.difference_update(change.removed)
        for block in change.stored:
            assert block.parent in self._keys
            self._keys.add(block.key)


class RemovesOnlyKnownBlocks(Counters):
    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[bytes, CacheBlock] = {}

    def blocks(self, change: CacheChange, at_s: float) -> None:
        if change.is_cleared:
            self._blocks.clear()
        for key in change.removed:
            del self._blocks[key]
        self._blocks.update((block.key, block) for block in change.stored)


class KeepsRemovedBlocks(Counters):
    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[bytes, CacheBlock] = {}

    def blocks(self, change: CacheChange, at_s: float) -> None:
        if change.is_cleared:
            self._blocks.clear()
        self._blocks.update((block.key, block) for block in change.stored)


class KeepsClearedBlocks(Counters):
    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[bytes, CacheBlock] = {}

    def blocks(self, change: CacheChange, at_s: float) -> None:
        for key in change.removed:
            self._blocks.pop(key, None)
        self._blocks.update((block.key, block) for block in change.stored)


class KnowsBlocks(Counters):
    """Is correct, and counts the blocks of the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[bytes, CacheBlock] = {}

    def blocks(self, change: CacheChange, at_s: float) -> None:
        if change.is_cleared:
            self.known.clear()
        for key in change.removed:
            self.known.pop(key, None)
        self.known.update((block.key, block) for block in change.stored)

    def stats(self) -> Mapping[str, float]:
        return {"num_blocks": float(len(self.known)), **super().stats()}


class RemovesAfterItStores(KnowsBlocks):
    def blocks(self, change: CacheChange, at_s: float) -> None:
        super().blocks(change, at_s)
        for key in change.removed:
            self.known.pop(key, None)


class ClearsInsteadOfOtherChanges(KnowsBlocks):
    def blocks(self, change: CacheChange, at_s: float) -> None:
        if change.is_cleared:
            self.known.clear()
        else:
            super().blocks(change, at_s)


class AddsSizesOfAChange(KnowsBlocks):
    """Keeps the number of blocks alone, to which a change adds and from which it subtracts."""

    num = 0

    def blocks(self, change: CacheChange, at_s: float) -> None:
        before = len(self.known)
        super().blocks(change, at_s)
        if change.stored and change.removed:
            self.num += len(change.stored) - len(change.removed)
        else:
            self.num += len(self.known) - before

    def stats(self) -> Mapping[str, float]:
        return {"num_blocks": float(self.num), **super(KnowsBlocks, self).stats()}


class KeepsOldBlocksOfStoredKeys(KnowsBlocks):
    """Keeps a list of keys, in which a key that is stored again is there twice."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[bytes] = []

    def blocks(self, change: CacheChange, at_s: float) -> None:
        if change.is_cleared:
            self.keys.clear()
        both = {block.key for block in change.stored} & set(change.removed)
        self.keys = [key for key in self.keys if key not in change.removed or key in both]
        self.keys += [block.key for block in change.stored]

    def stats(self) -> Mapping[str, float]:
        return {"num_blocks": float(len(self.keys)), **super(KnowsBlocks, self).stats()}


class LogsTokens(Counters):
    def blocks(self, change: CacheChange, at_s: float) -> None:
        for block in change.stored:
            logging.getLogger("broken").info("cached: %s", block.tokens)


class CountsTokensByTheirIds(Counters):
    def blocks(self, change: CacheChange, at_s: float) -> None:
        for block in change.stored:
            self._counts.update(f"num_of_{token_id}" for token_id in block.tokens)


class KeepsAThread(Counters):
    def __init__(self) -> None:
        super().__init__()
        self.is_over = threading.Event()
        threading.Thread(target=self.is_over.wait, args=(9,), daemon=True).start()


class OnObserver(ObserverContract):
    close_s = 0.3

    def __init__(self, kind: type[Observer]) -> None:
        self._kind = kind

    def make(self) -> Observer:
        return self._kind()


TABLE = Table(
    ObserverContract,
    OnObserver,
    Counters,
    (
        Broken(
            KeepsFinishedRequests,
            "A finished request is not referenced.",
            "a_finished_request_is_released",
        ),
        Broken(
            ExpectsAnAcceptedRequest,
            "A request may fail at any time.",
            "a_request_may_fail_at_any_time",
        ),
        Broken(
            DistinguishesRequestsByTheirIds,
            "Requests may overlap and share an id.",
            "requests_may_overlap_and_share_an_id",
        ),
        Broken(
            DividesByZero,
            "stats() returns finite numbers at any time.",
            "its_numbers_are_numbers_at_any_time",
        ),
        Broken(
            CountsForAllInstances,
            "Two observers count separately.",
            "two_observers_count_apart",
        ),
        Broken(
            EncodesNamesInLatin,
            "Names may contain any character.",
            "names_may_hold_any_character",
            raises=(UnicodeEncodeError,),
        ),
        Broken(
            NeedsAToken,
            "An answer may have no tokens.",
            "it_takes_the_whole_life_of_a_request",
            raises=(ZeroDivisionError,),
        ),
        Broken(
            ExpectsText,
            "A chunk may contain reasoning and calls, or nothing.",
            "it_accepts_every_kind_of_chunk",
            raises=(AttributeError,),
        ),
        Broken(
            ExpectsAFirstToken,
            "An embedding request has no first token.",
            "it_accepts_every_kind_of_chunk",
        ),
        Broken(
            ExpectsTwoErrors,
            "A request may fail with any error of vlmkit.",
            "a_request_may_fail_at_any_time",
            raises=(KeyError,),
        ),
        Broken(
            DividesByTheTimeOfAStep,
            "The measured time of a step may be zero.",
            "a_step_may_be_empty",
            raises=(ZeroDivisionError,),
        ),
        Broken(
            ReturnsInfinity,
            "The numbers of steps are finite.",
            "a_step_may_be_empty",
        ),
        Broken(
            KeepsErrorsOfRequests,
            "The error of a finished request is not referenced.",
            "a_finished_request_is_released",
        ),
        Broken(
            CountsEachId,
            "No data is kept for each id.",
            "memory_does_not_grow_with_the_requests",
        ),
        Broken(
            KeepsTheTimeOfEveryStep,
            "No data is kept for each step.",
            "memory_does_not_grow_with_the_requests",
        ),
        Broken(
            NamesNumbersByIntegers,
            "The names of numbers are strings.",
            "its_numbers_are_numbers_at_any_time",
        ),
        Broken(
            ReturnsNumbersAsStrings,
            "Values are numbers, not strings.",
            "its_numbers_are_numbers_at_any_time",
        ),
        Broken(
            ReturnsItsLiveCounters,
            "The result of stats() does not change later.",
            "returned_numbers_never_change",
        ),
        Broken(
            OpensItsFileInTheConstructor,
            "Events arrive in a different thread than the constructor's.",
            "events_come_in_a_thread_of_its_own",
            raises=(sqlite3.ProgrammingError,),
        ),
        Broken(
            CountsInOneThread,
            "stats() may be called from any thread.",
            "events_come_in_a_thread_of_its_own",
            raises=(AttributeError,),
        ),
        Broken(
            KeepsTraces,
            "No data is kept for each trace.",
            "memory_does_not_grow_with_the_requests",
        ),
        Broken(
            CountsEachSeed,
            "No data is kept for the parameters of each request.",
            "memory_does_not_grow_with_the_requests",
        ),
        Broken(
            KeepsLatencies,
            "No number is kept for each request.",
            "memory_does_not_grow_with_the_requests",
        ),
        Broken(
            ForgetsOnlyFinishedRequests,
            "A request that fails after its first token is not referenced.",
            "a_finished_request_is_released",
        ),
        Broken(
            ExpectsKnownParents,
            "A block of the cache may be stored while its parent is not.",
            "cache_blocks_may_change_in_any_way",
        ),
        Broken(
            RemovesOnlyKnownBlocks,
            "Unknown keys may be removed.",
            "cache_blocks_may_change_in_any_way",
            raises=(KeyError,),
        ),
        *(
            Broken(
                kind,
                promise,
                "a_change_with_a_key_in_both_parts_equals_two_changes",
                honest=KnowsBlocks,
            )
            for kind, promise in (
                (RemovesAfterItStores, "Removed blocks leave before stored ones enter."),
                (ClearsInsteadOfOtherChanges, "A cleared index holds what the change stores."),
                (AddsSizesOfAChange, "An unknown key that is removed and stored is a new block."),
                (KeepsOldBlocksOfStoredKeys, "A key that is removed and stored is there once."),
            )
        ),
        Broken(
            KeepsRemovedBlocks,
            "A removed block is not referenced.",
            "memory_does_not_grow_with_the_cache_blocks",
        ),
        Broken(
            KeepsClearedBlocks,
            "The blocks of a cleared cache are not referenced.",
            "memory_does_not_grow_with_the_cache_blocks",
        ),
        Broken(
            IteratesOverChangingNumbers,
            "stats() runs in another thread than the events.",
            "its_numbers_may_be_read_while_events_arrive",
        ),
        Broken(
            LogsTokens,
            "Tokens of cache blocks are not logged.",
            "tokens_of_cache_blocks_stay_out_of_logs_and_numbers",
        ),
        Broken(
            CountsTokensByTheirIds,
            "Tokens of cache blocks are no names of numbers.",
            "tokens_of_cache_blocks_stay_out_of_logs_and_numbers",
        ),
        Broken(
            KeepsAThread,
            "close() ends the threads of an observer.",
            "nothing_goes_on_when_it_is_closed",
        ),
    ),
)
