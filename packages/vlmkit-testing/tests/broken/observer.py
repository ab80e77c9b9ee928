"""Observers that break one promise each, made of the counters."""

import math
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from broken.broken import Broken, Table
from vlmkit.errors import EngineError, RequestError, VlmkitError
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts, StepFacts
from vlmkit.running.observers.builtin import Counters
from vlmkit.types.completion import Chunk
from vlmkit_testing import ObserverContract


class KeepsRequests(Counters):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[RequestFacts] = []

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        self.requests.append(request)


class ExpectsAnAcceptedRequest(Counters):
    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        assert self._counts["num_accepted"]


class TellsRequestsByTheirIds(Observer):
    def __init__(self) -> None:
        self.begun: set[str] = set()

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        assert request.id not in self.begun
        self.begun.add(request.id)

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self.begun.remove(request.id)


class DividesByNothing(Counters):
    def stats(self) -> Mapping[str, float]:
        return {"mean": float("nan"), **super().stats()}


class CountsForEverybody(Counters):
    everybody = Counters()

    def __init__(self) -> None:
        self.__dict__ = self.everybody.__dict__


class WritesLatinNames(Observer):
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


class KnowsTwoErrors(Counters):
    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        self._counts[{EngineError: "engine", RequestError: "request"}[type(error)]] += 1


class DividesByTheTime(Counters):
    def step(self, step: StepFacts, at_s: float) -> None:
        self._seconds["tokens_per_s"] = step.num_tokens / step.step_s


class TellsInfinity(Counters):
    def step(self, step: StepFacts, at_s: float) -> None:
        rate = step.num_tokens / step.step_s if step.step_s else math.inf
        self._seconds["most_per_s"] = max(rate, self._seconds.get("most_per_s", 0.0))


class KeepsErrors(Counters):
    last: VlmkitError | None = None

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        self.last = error


class CountsEachId(Counters):
    def __init__(self) -> None:
        super().__init__()
        self.by_id: Counter[str] = Counter()

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        self.by_id[request.id] += 1


class KeepsEveryTime(Counters):
    def __init__(self) -> None:
        super().__init__()
        self.times_s: list[float] = []

    def step(self, step: StepFacts, at_s: float) -> None:
        self.times_s.append(at_s + step.step_s * len(self.times_s))


class NamesNumbersByNumbers(Counters):
    def stats(self) -> Any:
        return {**super().stats(), 99: 1.0}


class WritesItsNumbers(Counters):
    def stats(self) -> Any:
        return {name: str(number) for name, number in super().stats().items()}


class TellsWhatItCountsOn(Counters):
    def stats(self) -> Mapping[str, float]:
        return self._counts


class OpensItsFileWhereItIsMade(Counters):
    def __init__(self) -> None:
        super().__init__()
        self._file = sqlite3.connect(":memory:")

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self._file.execute("select 1")


class CountsWhereItIsTold(Counters):
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
    """A list for a median: eight bytes a request."""

    def __init__(self) -> None:
        super().__init__()
        self._times_s: list[float] = []

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self._times_s.append(end.timings.decode_s)


class ForgetsWhoFinishes(Counters):
    """And keeps whoever fails in the middle of an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[RequestFacts, float] = {}

    def first_token(self, request: RequestFacts, at_s: float) -> None:
        self._begun[request] = at_s

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self._begun.pop(request, None)


class OnObserver(ObserverContract):
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
            KeepsRequests,
            "A request that is over is let go.",
            "a_finished_request_is_released",
        ),
        Broken(
            ExpectsAnAcceptedRequest,
            "A request may fail at any time.",
            "a_request_may_fail_at_any_time",
        ),
        Broken(
            TellsRequestsByTheirIds,
            "Requests may overlap and share an id.",
            "requests_may_overlap_and_share_an_id",
        ),
        Broken(
            DividesByNothing,
            "Its numbers are numbers at any time.",
            "its_numbers_are_numbers_at_any_time",
        ),
        Broken(
            CountsForEverybody,
            "Two observers count apart.",
            "two_observers_count_apart",
        ),
        Broken(
            WritesLatinNames,
            "Names may hold any character.",
            "names_may_hold_any_character",
            raises=(UnicodeEncodeError,),
        ),
        Broken(
            NeedsAToken,
            "An answer may have no token.",
            "it_takes_the_whole_life_of_a_request",
            raises=(ZeroDivisionError,),
        ),
        Broken(
            ExpectsText,
            "A chunk may hold thoughts and calls, or nothing.",
            "it_accepts_every_kind_of_chunk",
            raises=(AttributeError,),
        ),
        Broken(
            ExpectsAFirstToken,
            "A text that is embedded has no first token.",
            "it_accepts_every_kind_of_chunk",
        ),
        Broken(
            KnowsTwoErrors,
            "A request may fail with any error of ours.",
            "a_request_may_fail_at_any_time",
            raises=(KeyError,),
        ),
        Broken(
            DividesByTheTime,
            "A step may take no time that a clock can tell.",
            "a_step_may_be_empty",
            raises=(ZeroDivisionError,),
        ),
        Broken(
            TellsInfinity,
            "What is counted of steps is a number, too.",
            "a_step_may_be_empty",
        ),
        Broken(
            KeepsErrors,
            "The error of a request is let go with it.",
            "a_finished_request_is_released",
        ),
        Broken(
            CountsEachId,
            "Nothing is kept for each id.",
            "memory_does_not_grow_with_the_requests",
        ),
        Broken(
            KeepsEveryTime,
            "Nothing is kept for each step.",
            "memory_does_not_grow_with_the_requests",
        ),
        Broken(
            NamesNumbersByNumbers,
            "Numbers have texts as names.",
            "its_numbers_are_numbers_at_any_time",
        ),
        Broken(
            WritesItsNumbers,
            "Numbers are numbers, not texts.",
            "its_numbers_are_numbers_at_any_time",
        ),
        Broken(
            TellsWhatItCountsOn,
            "stats() is called from any thread: what it told changes no more.",
            "returned_numbers_never_change",
        ),
        Broken(
            OpensItsFileWhereItIsMade,
            "Events come in a thread of the observer's own, which did not make it.",
            "events_come_in_a_thread_of_its_own",
            raises=(sqlite3.ProgrammingError,),
        ),
        Broken(
            CountsWhereItIsTold,
            "stats() is called from any thread.",
            "events_come_in_a_thread_of_its_own",
            raises=(AttributeError,),
        ),
        Broken(
            KeepsTraces,
            "Nothing is kept for each trace.",
            "memory_does_not_grow_with_the_requests",
        ),
        Broken(
            CountsEachSeed,
            "Nothing is kept for each request's parameters.",
            "memory_does_not_grow_with_the_requests",
        ),
        Broken(
            KeepsLatencies,
            "No number is kept for each request.",
            "memory_does_not_grow_with_the_requests",
        ),
        Broken(
            ForgetsWhoFinishes,
            "A request that fails after its first token is let go.",
            "a_finished_request_is_released",
        ),
    ),
)
