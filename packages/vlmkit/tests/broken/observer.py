"""Observers that break one promise each, made of the counters."""

from collections.abc import Mapping

from broken.broken import Broken, Table
from vlmkit.errors import VlmkitError
from vlmkit.running.counters import Counters
from vlmkit.seams.observer import Observer, RequestEnd, RequestFacts
from vlmkit.testing import ObserverContract


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
            "a_request_that_is_over_is_let_go",
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
    ),
    is_whole=False,
)
