"""Monitors that break one promise each, derived from a monitor with counters."""

import http
import threading
import time
from collections import Counter
from typing import Any

from honest.monitor import Tally, Tokens

from broken.broken import Broken, Table
from vlmkit.errors import VlmkitError
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts
from vlmkit.types.completion import Chunk
from vlmkit_server.interfaces.monitor import HttpEnd, HttpRequest, Page, ServerState
from vlmkit_testing import MonitorContract


class ShowsTheFirstState(Tally):
    first: ServerState | None = None

    def page(self, state: ServerState, accept: str) -> Page | None:
        self.first = self.first or state
        shown = super().page(self.first, accept)
        return shown and Page(b"%d open\n" % self.first.num_open + shown.content, shown.media_type)


class ShowsItsState(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        shown = super().page(state, accept)
        return shown and Page(b"%d open\n" % state.num_open + shown.content, shown.media_type)


class NeedsARoute(Tally):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        assert end.route[0] == "/"
        super().ended(request, end)


class FailsOnDisconnectedClients(Tally):
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


class EncodesNamesInLatin(Tally):
    def began(self, request: HttpRequest) -> str:
        request.id.encode("ascii")
        return super().began(request)


class WritesCodesAsText(Tally):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        super().ended(request, end)
        self.counts["of codes"] += len(end.code.encode())


class PropagatesAnyTraceparent(Tally):
    def began(self, request: HttpRequest) -> str:
        return request.traceparent


class AcceptsUppercaseTraces(Tally):
    def began(self, request: HttpRequest) -> str:
        sent = HttpRequest("", "", 0.0, request.traceparent.lower())
        return super().began(sent) and request.traceparent


class StartsAnotherTrace(Tally):
    def began(self, request: HttpRequest) -> str:
        return f"00-{'1' * 32}-{'2' * 16}-01" if super().began(request) else ""


class HidesItsPageFromSomeClients(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        return None if "html" in accept else super().page(state, accept)


class WritesText(Tally):
    def page(self, state: ServerState, accept: str) -> Any:
        page = super().page(state, accept)
        return page and Page(page.content.decode(), "text/plain")  # type: ignore[arg-type]


class StartsWithAnEmptyPage(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        return super().page(state, accept) if self.counts else Page(b"", "text/plain")


class OmitsTheMediaType(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        page = super().page(state, accept)
        return page and Page(page.content, accept)


class DividesByTheCapacity(Tally):
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


class IteratesOverChangingData(Tally):
    def page(self, state: ServerState, accept: str) -> Page | None:
        for _ in self.counts:
            time.sleep(0.0005)
        return super().page(state, accept)


class SharesOneObserver(Tally):
    shared: Tokens | None = None

    def observer(self, model: str) -> Observer | None:
        self.shared = self.shared or TokensUntilClosed(self.counts, model, self.lock)
        return self.shared


class TokensUntilClosed(Tokens):
    is_closed = False

    def tokens(self, request: RequestFacts, chunk: Chunk, at_s: float) -> None:
        assert not self.is_closed
        super().tokens(request, chunk, at_s)

    def close(self) -> None:
        self.is_closed = True


class ForgetsClosedObservers(Tally):
    """Adds up what the observers hold."""

    def __init__(self) -> None:
        super().__init__()
        self.observers: list[Tokens] = []

    def observer(self, model: str) -> Observer | None:
        made = ForgottenTokens(Counter(), model, self.lock)
        self.observers = [*(each for each in self.observers if each.counts), made]
        return made

    def page(self, state: ServerState, accept: str) -> Page | None:
        shown = Tally()
        shown.counts = sum((each.counts for each in self.observers), self.counts)
        return shown.page(state, accept)


class ForgottenTokens(Tokens):
    def close(self) -> None:
        self.counts.clear()


class MeasuresRequestsById(Tally):
    def observer(self, model: str) -> Observer | None:
        return TimesById(self.counts, model, self.lock)


class TimesById(Tokens):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.accepted_s: dict[str, float] = {}

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        self.accepted_s[request.id] = at_s

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        waited_s = at_s - self.accepted_s.pop(request.id, at_s)
        with self.lock:
            self.counts["seconds"] += int(waited_s)


class KeepsFinishedRequests(Tally):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[HttpRequest] = []

    def began(self, request: HttpRequest) -> str:
        self.seen.append(request)
        return super().began(request)


class KeepsObservedEvents(Tally):
    def observer(self, model: str) -> Observer | None:
        return TokensThatKeepEvents(self.counts, model, self.lock)


class TokensThatKeepEvents(Tokens):
    last: Any = None

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self.last = request


class BlocksTheEventLoop(Tally):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        time.sleep(0.05)
        super().ended(request, end)


class WaitsForActiveRequests(Tally):
    def close(self) -> None:
        deadline = time.monotonic() + 2.0
        while self.num_open and time.monotonic() < deadline:
            time.sleep(0.05)


class FailsOnASecondClose(Tally):
    def __init__(self) -> None:
        super().__init__()
        self.sending = threading.Lock()
        self.sending.acquire()

    def close(self) -> None:
        self.sending.release()


class NamesRequestsById(Tally):
    def __init__(self) -> None:
        super().__init__()
        self.open: dict[str, HttpRequest] = {}

    def began(self, request: HttpRequest) -> str:
        self.open[request.id] = request
        return super().began(request)

    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        self.open.pop(request.id)
        super().ended(request, end)


class CountsOneOfEachId(NamesRequestsById):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        if self.open.pop(request.id, None) is not None:
            Tally.ended(self, request, end)


class TracesTheFirstRequest(Tally):
    is_first = True

    def began(self, request: HttpRequest) -> str:
        trace = super().began(request) if self.is_first else ""
        self.is_first = False
        return trace


class KeepsAThread(Tally):
    def __init__(self) -> None:
        super().__init__()
        self.is_over = threading.Event()
        threading.Thread(target=self.is_over.wait, args=(9,), daemon=True).start()


class NamesAllModelsByTheFirst(Tally):
    first = ""

    def observer(self, model: str) -> Observer | None:
        self.first = self.first or model
        return super().observer(self.first)


class KeepsLostRequests(Tally):
    def __init__(self) -> None:
        super().__init__()
        self.lost: list[HttpRequest] = []

    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        super().ended(request, end)
        if end.status == 499:
            self.lost.append(request)


class KeepsDelays(Tally):
    def __init__(self) -> None:
        super().__init__()
        self.delays_s: list[float] = []

    def lagged(self, lag_s: float) -> None:
        self.delays_s.append(lag_s)


class KeepsPolledRequests(Tally):
    """Traces no health checks, and forgets to drop what it kept at their begin."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[HttpRequest] = set()

    def began(self, request: HttpRequest) -> str:
        self.open.add(request)
        return super().began(request)

    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        super().ended(request, end)
        if end.route != "/healthz":
            self.open.remove(request)


class KeepsRequestsWithoutARoute(KeepsPolledRequests):
    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        Tally.ended(self, request, end)
        if end.route:
            self.open.remove(request)


class AddsUpItsObservers(Tally):
    """Adds up what the observers of each model hold."""

    def __init__(self) -> None:
        super().__init__()
        self.observers: dict[str, list[Tokens]] = {}

    def observer(self, model: str) -> Observer | None:
        made = Tokens(Counter(), model, self.lock)
        self.observers.setdefault(model, []).append(made)
        return made

    def page(self, state: ServerState, accept: str) -> Page | None:
        shown = Tally()
        found = [each.counts for some in self.observers.values() for each in some]
        shown.counts = sum(found, self.counts)
        return shown.page(state, accept)


class CountsTheNewestObserver(AddsUpItsObservers):
    def observer(self, model: str) -> Observer | None:
        made = super().observer(model)
        self.observers[model] = self.observers[model][-1:]
        return made


class CountsTheOldestObserver(AddsUpItsObservers):
    def observer(self, model: str) -> Observer | None:
        made = super().observer(model)
        self.observers[model] = self.observers[model][:1]
        return made


class OnMonitor(MonitorContract):
    close_s = 0.5

    def __init__(self, kind: type[Tally]) -> None:
        self._kind = kind

    def make(self) -> Tally:
        return self._kind()


RELEASED = "a_finished_request_is_released_whatever_its_route"
ALL_COUNT = "all_observers_of_a_model_count"
TABLE = Table(
    MonitorContract,
    OnMonitor,
    Tally,
    (
        Broken(
            NeedsARoute,
            "A request may have no route.",
            "it_takes_the_whole_life_of_a_request",
            raises=(IndexError,),
        ),
        Broken(
            FailsOnDisconnectedClients,
            "The status is 499 if the client disconnected.",
            "it_takes_the_whole_life_of_a_request",
            raises=(ValueError,),
        ),
        Broken(
            ReturnsNoTrace,
            "began() returns a string, empty if nothing is traced.",
            "it_takes_the_whole_life_of_a_request",
        ),
        Broken(
            NeedsAToken,
            "A request may fail before its first token.",
            "it_takes_the_whole_life_of_a_request",
            raises=(KeyError,),
        ),
        Broken(
            EncodesNamesInLatin,
            "Ids may contain any character.",
            "any_values_of_clients_are_accepted",
            raises=(UnicodeEncodeError,),
        ),
        Broken(
            WritesCodesAsText,
            "Error codes may contain any character.",
            "any_values_of_clients_are_accepted",
            raises=(UnicodeEncodeError,),
        ),
        Broken(
            PropagatesAnyTraceparent,
            "began() returns a valid trace for any traceparent of a client.",
            "an_invalid_trace_is_not_propagated",
        ),
        Broken(
            AcceptsUppercaseTraces,
            "A trace has the format of W3C Trace Context.",
            "an_invalid_trace_is_not_propagated",
        ),
        Broken(
            StartsAnotherTrace,
            "A request continues the trace of its client.",
            "a_trace_goes_on",
        ),
        Broken(
            ShowsTheFirstState,
            "A page is of the state that it is given.",
            "a_page_is_of_the_given_state",
            honest=ShowsItsState,
        ),
        Broken(
            HidesItsPageFromSomeClients,
            "Whether there is a page does not depend on the client's Accept header.",
            "a_page_is_bytes_of_a_kind_and_never_shrinks_to_nothing",
        ),
        Broken(
            WritesText,
            "The content of a page is bytes.",
            "a_page_is_bytes_of_a_kind_and_never_shrinks_to_nothing",
        ),
        Broken(
            StartsWithAnEmptyPage,
            "A page is never empty.",
            "a_page_is_bytes_of_a_kind_and_never_shrinks_to_nothing",
        ),
        Broken(
            OmitsTheMediaType,
            "A page states its media type.",
            "a_page_is_bytes_of_a_kind_and_never_shrinks_to_nothing",
        ),
        Broken(
            DividesByTheCapacity,
            "The capacity of a resource may be zero.",
            "an_idle_server_has_a_page",
            raises=(ZeroDivisionError,),
        ),
        Broken(
            NeedsItsCounters,
            "A runner may have no counters.",
            "an_idle_server_has_a_page",
            raises=(KeyError,),
        ),
        Broken(
            LabelsByMethods,
            "The method of a client is not a label.",
            "a_page_does_not_grow_with_its_clients",
        ),
        Broken(
            LabelsByIds,
            "The id of a client is not a label.",
            "a_page_does_not_grow_with_its_clients",
        ),
        Broken(
            IteratesOverChangingData,
            "page() runs in another thread.",
            "a_page_may_be_requested_while_requests_arrive",
        ),
        Broken(
            SharesOneObserver,
            "Two observers of one model may get events at once during a replacement.",
            "one_model_may_have_two_observers_while_it_is_replaced",
        ),
        Broken(
            ForgetsClosedObservers,
            "What a closed observer counted stays counted.",
            "a_replaced_observer_loses_and_repeats_no_count",
        ),
        Broken(
            MeasuresRequestsById,
            "Requests are distinguished by object identity.",
            "requests_with_one_id_do_not_mix",
        ),
        Broken(
            KeepsFinishedRequests,
            "A finished request is not referenced.",
            "a_finished_request_is_released",
        ),
        Broken(
            KeepsObservedEvents,
            "The events of a finished request are not referenced.",
            "a_finished_request_is_released",
        ),
        Broken(
            BlocksTheEventLoop,
            "Calls in the event loop do not block.",
            "the_event_loop_is_not_blocked",
        ),
        Broken(
            WaitsForActiveRequests,
            "close() releases everything, active requests included.",
            "it_closes_while_requests_are_active",
        ),
        Broken(
            FailsOnASecondClose,
            "Methods may be called after close().",
            "closing_twice_is_harmless",
            raises=(RuntimeError,),
        ),
        Broken(
            CountsOneOfEachId,
            "Two requests with one id are both counted.",
            "requests_with_one_id_do_not_mix",
        ),
        Broken(
            TracesTheFirstRequest,
            "Each request continues the trace of its client.",
            "a_trace_goes_on",
        ),
        Broken(
            KeepsAThread,
            "close() ends the threads of a monitor.",
            "nothing_goes_on_when_it_is_closed",
        ),
        Broken(
            NamesAllModelsByTheFirst,
            "An observer is one of its model.",
            "models_are_counted_apart",
        ),
        Broken(
            KeepsLostRequests,
            "A request is not referenced after its end, whatever its status.",
            "a_finished_request_is_released",
        ),
        Broken(
            KeepsPolledRequests,
            "A request of a route that is not traced is not referenced.",
            RELEASED,
        ),
        Broken(
            KeepsRequestsWithoutARoute,
            "A request of no known route is not referenced.",
            RELEASED,
        ),
        Broken(
            CountsTheNewestObserver,
            "A new observer of a model does not stop the others.",
            ALL_COUNT,
            honest=AddsUpItsObservers,
        ),
        Broken(
            CountsTheOldestObserver,
            "A new observer of a model counts beside the others.",
            ALL_COUNT,
            honest=AddsUpItsObservers,
        ),
        Broken(
            KeepsDelays,
            "No number is kept for each delay of the event loop.",
            "memory_does_not_grow_with_the_delays",
        ),
    ),
)
