"""Monitors that break one promise each, made of one that counts."""

import http
import threading
import time
from typing import Any

from honest.monitor import Tally, Tokens

from broken.broken import Broken, Table
from vlmkit.errors import VlmkitError
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts
from vlmkit.types.completion import Chunk
from vlmkit_server.interfaces.monitor import HttpEnd, HttpRequest, Page, ServerState
from vlmkit_testing import MonitorContract


class NeedsARoute(Tally):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        assert end.route[0] == "/"
        super().ended(request, end)


class KnowsNoClientThatIsGone(Tally):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        super().ended(request, end)
        self.counts[http.HTTPStatus(end.status).phrase] += 1


class ReturnsNoTrace(Tally):
    def began(self, request: HttpRequest) -> Any:
        return super().began(request) and None


class NeedsAToken(Tally):
    def observer(self, model: str) -> Observer | None:
        return TimesOfTokens(self.counts, model, self.lock)


class TimesOfTokens(Tokens):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.first_s: dict[RequestFacts, float] = {}

    def first_token(self, request: RequestFacts, at_s: float) -> None:
        self.first_s[request] = at_s

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        del self.first_s[request]

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        del self.first_s[request]


class WritesLatinNames(Tally):
    def began(self, request: HttpRequest) -> str:
        request.id.encode("ascii")
        return super().began(request)


class WritesCodesAsText(Tally):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        super().ended(request, end)
        self.counts["of codes"] += len(end.code.encode())


class PassesAnythingOn(Tally):
    def began(self, request: HttpRequest) -> str:
        return request.traceparent


class MindsNoCase(Tally):
    def began(self, request: HttpRequest) -> str:
        sent = HttpRequest("", "", 0.0, request.traceparent.lower())
        return super().began(sent) and request.traceparent


class BeginsAnotherTrace(Tally):
    def began(self, request: HttpRequest) -> str:
        return f"00-{'1' * 32}-{'2' * 16}-01" if super().began(request) else ""


class HasAPageAtTimes(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        return None if "html" in accept else super().page(state, accept)


class WritesText(Tally):
    def page(self, state: ServerState, accept: str) -> Any:
        page = super().page(state, accept)
        return page and Page(page.content.decode(), "text/plain")  # type: ignore[arg-type]


class ShowsNothingAtFirst(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        return super().page(state, accept) if self.counts else Page(b"", "text/plain")


class SaysNoMediaType(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        page = super().page(state, accept)
        return page and Page(page.content, accept)


class DividesByTheRoom(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        assert all(used / most >= 0 for used, most in state.resources.values())
        return super().page(state, accept)


class NeedsItsCounters(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        assert all(m.counters["num_steps"] >= 0 for m in state.models if m.stats is not None)
        return super().page(state, accept)


class LabelsByMethods(Tally):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        super().ended(request, end)
        self.counts[request.method] += 1


class LabelsByIds(Tally):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        super().ended(request, end)
        self.counts[request.id] += 1


class WalksOverWhatChanges(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        for _ in self.counts:
            time.sleep(0.0005)
        return super().page(state, accept)


class SharesItsObserver(Tally):
    shared: Tokens | None = None

    def observer(self, model: str) -> Observer | None:
        self.shared = self.shared or OnceOnly(self.counts, model, self.lock)
        return self.shared


class OnceOnly(Tokens):
    is_closed = False

    def tokens(self, request: RequestFacts, chunk: Chunk, at_s: float) -> None:
        assert not self.is_closed
        super().tokens(request, chunk, at_s)

    def close(self) -> None:
        self.is_closed = True


class KeepsRequests(Tally):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[HttpRequest] = []

    def began(self, request: HttpRequest) -> str:
        self.seen.append(request)
        return super().began(request)


class KeepsWhatIsObserved(Tally):
    def observer(self, model: str) -> Observer | None:
        return Keeping(self.counts, model, self.lock)


class Keeping(Tokens):
    last: Any = None

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self.last = request


class WritesSlowly(Tally):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        time.sleep(0.05)
        super().ended(request, end)


class WaitsForAll(Tally):
    def close(self) -> None:
        deadline = time.monotonic() + 2.0
        while self.num_open and time.monotonic() < deadline:
            time.sleep(0.05)


class ClosesOnce(Tally):
    def __init__(self) -> None:
        super().__init__()
        self.sending = threading.Lock()
        self.sending.acquire()

    def close(self) -> None:
        self.sending.release()


class OnMonitor(MonitorContract):
    close_s = 0.5

    def __init__(self, kind: type[Tally]) -> None:
        self._kind = kind

    def make(self) -> Tally:
        return self._kind()


TABLE = Table(
    MonitorContract,
    OnMonitor,
    Tally,
    (
        Broken(
            NeedsARoute,
            "A request may be of no route.",
            "it_takes_the_whole_life_of_a_request",
            raises=(IndexError,),
        ),
        Broken(
            KnowsNoClientThatIsGone,
            "The status is 499 where the client was gone before.",
            "it_takes_the_whole_life_of_a_request",
            raises=(ValueError,),
        ),
        Broken(
            ReturnsNoTrace,
            "began() returns a text, which is empty where nothing is traced.",
            "it_takes_the_whole_life_of_a_request",
        ),
        Broken(
            NeedsAToken,
            "A request may fail before it has a token.",
            "it_takes_the_whole_life_of_a_request",
            raises=(KeyError,),
        ),
        Broken(
            WritesLatinNames,
            "Ids may hold any character.",
            "any_values_of_clients_are_accepted",
            raises=(UnicodeEncodeError,),
        ),
        Broken(
            WritesCodesAsText,
            "So may whatever else comes from outside.",
            "any_values_of_clients_are_accepted",
            raises=(UnicodeEncodeError,),
        ),
        Broken(
            PassesAnythingOn,
            "traceparent is whatever a client sent; what began() returns is a trace.",
            "an_invalid_trace_is_not_propagated",
        ),
        Broken(
            MindsNoCase,
            "A trace is written as W3C Trace Context has it.",
            "an_invalid_trace_is_not_propagated",
        ),
        Broken(
            BeginsAnotherTrace,
            "A request belongs to the trace that it came with.",
            "a_trace_goes_on",
        ),
        Broken(
            HasAPageAtTimes,
            "There is a page or there is none, whatever a client takes.",
            "a_page_is_bytes_of_a_kind_and_never_shrinks_to_nothing",
        ),
        Broken(
            WritesText,
            "A page's content is bytes.",
            "a_page_is_bytes_of_a_kind_and_never_shrinks_to_nothing",
        ),
        Broken(
            ShowsNothingAtFirst,
            "A page holds something from the start.",
            "a_page_is_bytes_of_a_kind_and_never_shrinks_to_nothing",
        ),
        Broken(
            SaysNoMediaType,
            "A page says what kind it is.",
            "a_page_is_bytes_of_a_kind_and_never_shrinks_to_nothing",
        ),
        Broken(
            DividesByTheRoom,
            "There may be nothing of a resource.",
            "an_idle_server_has_a_page",
            raises=(ZeroDivisionError,),
        ),
        Broken(
            NeedsItsCounters,
            "A runner may have counted nothing.",
            "an_idle_server_has_a_page",
            raises=(KeyError,),
        ),
        Broken(
            LabelsByMethods,
            "A method is as the client wrote it, and no label.",
            "a_page_does_not_grow_with_its_clients",
        ),
        Broken(
            LabelsByIds,
            "An id is as the client wrote it, and no label.",
            "a_page_does_not_grow_with_its_clients",
        ),
        Broken(
            WalksOverWhatChanges,
            "page() is called in a thread of its own.",
            "a_page_may_be_requested_while_requests_arrive",
        ),
        Broken(
            SharesItsObserver,
            "Several observers of one model are told at once while one replaces another.",
            "one_model_may_have_two_observers_while_it_is_replaced",
        ),
        Broken(
            KeepsRequests,
            "A request that is over is let go.",
            "a_finished_request_is_released",
        ),
        Broken(
            KeepsWhatIsObserved,
            "So is what its observer was told of it.",
            "a_finished_request_is_released",
        ),
        Broken(
            WritesSlowly,
            "What is called in the event loop is quick.",
            "the_event_loop_is_not_blocked",
        ),
        Broken(
            WaitsForAll,
            "close() lets go of everything, of requests under way too.",
            "it_closes_while_requests_are_active",
        ),
        Broken(
            ClosesOnce,
            "After close() it may be called again.",
            "closing_twice_is_harmless",
            raises=(RuntimeError,),
        ),
    ),
)
