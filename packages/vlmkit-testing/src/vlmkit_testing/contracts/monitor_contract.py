"""What every monitor must do."""

import gc
import re
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Iterator, Sequence as Seq
from contextlib import contextmanager

import pytest

from vlmkit.errors import ConfigError, EngineError
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts
from vlmkit.types.completion import Chunk, Timings, Usage
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.stage import ImageTimings, Stage
from vlmkit_server.interfaces.monitor import (
    HttpEnd,
    HttpRequest,
    ModelState,
    Monitor,
    Page,
    ServerState,
)

ODD = ('"', "\n", "\\", "é", "\ud800", "\0", "{}%s", "x" * 4096)
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
FORM = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
NO_TRACES = (
    "",
    "é",
    "00",
    TRACEPARENT.upper(),
    f"{TRACEPARENT}-x",
    "00-" + "0" * 32 + "-b7ad6b7169203331-01",
    f"ff-{TRACE_ID}-b7ad6b7169203331-01",
)
QUICK_S, NUM_TRIES = 0.02, 5
NUM_LOADS, NUM_REPLICAS = 4, 3
OF_PROCESS = ("process_", "python_")
PREFIXES_OF_PROCESS = tuple(map(str.encode, OF_PROCESS))
SERIES = re.compile(
    r"(?P<series>(?P<name>[A-Za-z_:][\w:]*)(?:\{.*\})?) (?P<value>[-+.\de]+|[-+]?Inf)"
)
ROUTES = (
    "",
    "/",
    "/healthz",
    "/health",
    "/ping",
    "/readyz",
    "/version",
    "/metrics",
    "/v1/models",
    "/v1/chat/completions",
    "/no/such/route",
)
ENDS = (("GET", 200, ""), ("POST", 200, ""), ("GET", 404, "not_found"), ("GET", 503, "overloaded"))
"""Methods of requests, and the status and code of their answers."""

NUM_STRANGERS, MAX_GROWTH_BYTES = 300, 2000
MAX_LEFT_BYTES = 16_000  # of four times as many delays


class MonitorContract:
    """Inherit it, override :meth:`make`, and run pytest.

    Attributes:
        close_s: the longest time that ``close`` may take.
    """

    close_s = 60.0

    def make(self) -> Monitor:
        """Return a new monitor."""
        raise NotImplementedError

    def test_it_takes_the_whole_life_of_a_request(self) -> None:
        """Answered, failed, abandoned by its client, and for an unknown path."""
        with self._made() as monitor:
            observer = monitor.observer("model")
            request = self._request()
            trace = monitor.began(request)
            assert isinstance(trace, str)
            if observer is not None:
                self._serve(observer, request.id, trace)
                failing = RequestFacts("other", "model", "", SamplingParams(), 7, trace=trace)
                observer.failed(failing, EngineError("the engine failed"), 4.0)
                observer.close()
            monitor.ended(request, HttpEnd("/v1/chat/completions", 200, "", 2.0))
            for end in (HttpEnd("", 404, "not_found", 0.0), HttpEnd("/v1/x", 499, "", 0.1)):
                lost = self._request()
                monitor.began(lost)
                monitor.ended(lost, end)
            monitor.lagged(0.0)

    @pytest.mark.parametrize("text", ODD)
    def test_any_values_of_clients_are_accepted(self, text: str) -> None:
        """Ids, methods and traces are client input."""
        with self._made() as monitor:
            request = HttpRequest(text, text, 1.0, text, text)
            trace = monitor.began(request)
            if observer := monitor.observer("model"):
                self._serve(observer, text, trace)
                observer.close()
            monitor.ended(request, HttpEnd("/x", 200, text[:64], 1.0))
            self._page(monitor, text)

    # Traces

    @pytest.mark.parametrize("sent", NO_TRACES)
    def test_an_invalid_trace_is_not_propagated(self, sent: str) -> None:
        """Only traces of the W3C format are propagated."""
        with self._made() as monitor:
            request = HttpRequest("req-1", "POST", 1.0, sent, sent)
            trace = monitor.began(request)
            assert not trace or FORM.fullmatch(trace)
            monitor.ended(request, HttpEnd("/x", 200, "", 1.0))

    def test_a_trace_goes_on(self) -> None:
        """The trace id is kept, in each request of it."""
        with self._made() as monitor:
            requests = [self._request() for _ in range(3)]
            traces = [monitor.began(request) for request in requests]
            assert len({bool(trace) for trace in traces}) == 1
            for trace in filter(None, traces):
                found = FORM.fullmatch(trace)
                assert found
                assert found[1] == TRACE_ID
            for request in requests:
                monitor.ended(request, HttpEnd("/x", 200, "", 1.0))

    # Pages

    def test_a_page_is_bytes_of_a_kind_and_never_shrinks_to_nothing(self) -> None:
        """A monitor without a page never has one."""
        with self._made() as monitor:
            pages = [self._page(monitor, accept) for accept in ("", "*/*", "text/html", "\0;;q=x")]
            request = self._request()
            monitor.began(request)
            monitor.ended(request, HttpEnd("/x", 200, "", 1.0))
            pages.append(self._page(monitor))
            assert len({page is None for page in pages}) == 1
            for page in pages:
                assert page is None or isinstance(page.content, bytes)
                assert page is None or (page.content and "/" in page.media_type)

    def test_a_page_is_of_the_given_state(self) -> None:
        """A page that was written before does not matter.

        A third monitor writes, too, what two new ones write of one state and not of another.
        """
        states = [
            ServerState("ready", (), number, {"requests": (number, 9)}, {}, number)
            for number in (3, 5)
        ]

        def lines(*shown: ServerState) -> set[bytes]:
            with self._made() as monitor:
                pages = [monitor.page(state, "text/plain") for state in shown]
            text = pages[-1].content.splitlines() if pages[-1] else []
            return {line for line in text if not line.startswith(PREFIXES_OF_PROCESS)}

        first, second = states
        of_second = (lines(second) & lines(second)) - lines(first)
        assert of_second <= lines(first, second)

    def test_an_idle_server_has_a_page(self) -> None:
        """Without models, resources and requests, so that no mean exists."""
        with self._made() as monitor:
            bare = RunnerStats(0, 0, 0, 0, {}, {})
            model = ModelState("", "failed", {}, 0.0, 0, 0, 0, 0, {}, bare)
            for models in ((), (model,)):
                state = ServerState("starting", models, 0, {"requests": (0, 0)}, {}, 0)
                monitor.page(state, "")
            monitor.lagged(0.0)

    def test_a_page_does_not_grow_with_its_clients(self) -> None:
        """Client input is never a label: ids, methods and traces are unbounded."""
        with self._made() as monitor:
            sizes = []
            for round_ in range(2):
                for number in range(NUM_STRANGERS):
                    name = f"stranger-{round_}-{number}"
                    request = HttpRequest(name, name, 1.0, name, name)
                    monitor.began(request)
                    monitor.ended(request, HttpEnd("/x", 200, "", 1.0))
                page = self._page(monitor)
                sizes.append(len(page.content) if page else 0)
            assert sizes[1] - sizes[0] < MAX_GROWTH_BYTES

    def test_a_page_may_be_requested_while_requests_arrive(self) -> None:
        """It is rendered in a thread beside the event loop and the observers."""
        monitor, problems = self.make(), []
        is_asked, is_over = threading.Event(), threading.Event()

        def ask() -> None:
            while not is_over.is_set():
                try:
                    self._page(monitor)
                    is_asked.set()
                except Exception as error:  # noqa: BLE001 - raised below
                    problems.append(error)
                    return

        asking = threading.Thread(target=ask)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            asking.start()
            is_asked.wait(self.close_s)
            observer = monitor.observer("model")
            for number in range(NUM_STRANGERS):
                request = self._request()
                trace = monitor.began(request)
                if observer is not None:
                    self._serve(observer, request.id, trace)
                monitor.ended(request, HttpEnd("/x", 200 + number, "", 1.0))
                if number % 10 == 0:
                    time.sleep(0.001)  # so that the other thread comes in between
        finally:
            is_over.set()
            asking.join()
            sys.setswitchinterval(before)
        monitor.close()
        assert not problems

    # Observers

    def test_one_model_may_have_two_observers_while_it_is_replaced(self) -> None:
        """Closing the old one does not affect the new one."""
        with self._made() as monitor:
            old, new = monitor.observer("model"), monitor.observer("model")
            assert (old is None) == (new is None)
            if old is None or new is None:
                return
            for observer in (old, new):
                self._serve(observer, "req-1")
            old.close()
            self._serve(new, "req-2")
            self._page(monitor)
            new.close()
            self._page(monitor)

    def test_a_replaced_observer_loses_and_repeats_no_count(self) -> None:
        """The page is that of one observer, however often the model was loaded again."""
        with self._made() as monitor, self._made() as expected:
            constant = expected.observer("model")
            for number in range(NUM_LOADS):
                observer = monitor.observer("model")
                for served in (observer, constant):
                    if served is not None:
                        for _ in range(1 + number % 3):
                            self._serve(served, "req-1")
                        self._fail(served, EngineError("the engine failed"))
                self._check_series(monitor, expected)
                if observer is not None:
                    observer.close()
                self._check_series(monitor, expected)

    def test_all_observers_of_a_model_count(self) -> None:
        """Of several at once, before and after another is made or closed."""
        with self._made() as monitor, self._made() as expected:
            constant = expected.observer("model")
            if constant is None:
                pytest.skip("it observes no requests")
            observers: list[Observer] = []
            for number in range(NUM_REPLICAS):
                made = monitor.observer("model")
                assert made is not None
                observers.append(made)
                for one in observers:
                    self._serve(one, f"req-{number}")
                    self._serve(constant, f"req-{number}")
                self._check_series(monitor, expected)
            while observers:
                observers.pop(len(observers) // 2).close()
                for one in observers:
                    self._fail(one, EngineError("the engine failed"))
                    self._fail(constant, EngineError("the engine failed"))
                self._check_series(monitor, expected)

    def test_models_are_counted_apart(self) -> None:
        """Whichever was loaded first."""
        with self._made() as monitor, self._made() as expected:
            for each, names in ((monitor, ("one", "two")), (expected, ("two", "one"))):
                try:
                    observers = {name: each.observer(name) for name in names}
                except ConfigError as error:
                    pytest.skip(f"its settings are of one model alone: {error}")
                for name, number in (("one", 1), ("two", 3)):
                    observer = observers[name]
                    for _ in range(number if observer is not None else 0):
                        self._serve(observer, "req-1")  # type: ignore[arg-type]
            self._check_series(monitor, expected)

    def test_memory_does_not_grow_with_the_delays(self) -> None:
        """The event loop reports one several times a second, for months."""
        with self._made() as monitor:

            def report() -> int:
                for number in range(NUM_STRANGERS):
                    monitor.lagged(0.001 * number)
                gc.collect()
                return tracemalloc.get_traced_memory()[0]

            report()
            tracemalloc.start()
            try:
                before = [report(), report()][-1]
                grown = [report() for _ in range(4)][-1] - before
            finally:
                tracemalloc.stop()
            assert grown < MAX_LEFT_BYTES

    def test_requests_with_one_id_do_not_mix(self) -> None:
        """Clients choose ids, and two requests with the same one may run at once."""
        with self._made() as monitor, self._made() as expected:
            for each, names in ((monitor, ("req-1", "req-1")), (expected, ("req-1", "req-2"))):
                requests = [HttpRequest(name, "POST", 1.0, TRACEPARENT) for name in names]
                for request in requests:
                    each.began(request)
                for request, status in zip(requests, (200, 500), strict=True):
                    each.ended(request, HttpEnd("/x", status, "", 1.0))
            self._check_series(monitor, expected)
            for each, names in ((monitor, ("req-1", "req-1")), (expected, ("req-1", "req-2"))):
                if (observer := each.observer("model")) is None:
                    return
                self._serve_beside(observer, names)
            self._check_series(monitor, expected)

    def test_a_finished_request_is_released(self) -> None:
        """A monitor runs for months, so it must not keep requests, failed ones included."""
        with self._made() as monitor:
            request = self._request()
            gone: list[weakref.ref[object]] = [weakref.ref(request)]
            trace = monitor.began(request)
            observer = monitor.observer("model")
            if observer is not None:
                facts = self._serve(observer, request.id, trace)
                gone.append(weakref.ref(facts))
                facts = self._fail(observer, EngineError("the engine failed"))
                gone.append(weakref.ref(facts))
                del facts
            monitor.ended(request, HttpEnd("/x", 200, "", 1.0))
            for status, code in ((499, ""), (500, "engine_error"), (404, "not_found")):
                request = self._request()
                gone.append(weakref.ref(request))
                monitor.began(request)
                monitor.ended(request, HttpEnd("", status, code, 1.0))
            del request
            gc.collect()
            assert not [ref() for ref in gone if ref() is not None]

    def test_a_finished_request_is_released_whatever_its_route(self) -> None:
        """Also of a route that is polled or unknown; other requests may begin in between."""
        with self._made() as monitor:
            waiting = [self._request() for _ in ROUTES]
            for route, other in zip(ROUTES, waiting, strict=True):
                gone: list[weakref.ref[object]] = []
                monitor.began(other)
                for method, status, code in ENDS:
                    request = HttpRequest("req-1", method, 1.0)
                    gone.append(weakref.ref(request))
                    monitor.began(request)
                    monitor.ended(request, HttpEnd(route, status, code, 1.0))
                del request
                gc.collect()
                num_left = sum(ref() is not None for ref in gone)
                assert not num_left, f"{num_left} requests to {route!r} are kept"
            for route, other in zip(ROUTES, waiting, strict=True):
                monitor.ended(other, HttpEnd(route, 200, "", 1.0))

    # The event loop, and the end

    def test_the_event_loop_is_not_blocked(self) -> None:
        """Its methods run in the event loop, where all requests would wait."""
        with self._made() as monitor:
            took_s = []
            for _ in range(NUM_TRIES):
                began = time.perf_counter()
                request = self._request()
                monitor.began(request)
                monitor.ended(request, HttpEnd("/x", 200, "", 1.0))
                monitor.lagged(0.1)
                took_s.append(time.perf_counter() - began)
            assert min(took_s) < QUICK_S

    def test_it_closes_while_requests_are_active(self) -> None:
        """A server that shuts down does not wait for them forever."""
        monitor = self.make()
        for number in range(9):
            monitor.began(HttpRequest(f"req-{number}", "POST", 1.0, TRACEPARENT))
        closing = threading.Thread(target=monitor.close, daemon=True)
        closing.start()
        closing.join(self.close_s)
        assert not closing.is_alive()

    def test_nothing_goes_on_when_it_is_closed(self) -> None:
        """It releases its threads, too."""
        before = set(threading.enumerate())
        with self._made() as monitor:
            request = self._request()
            trace = monitor.began(request)
            if (observer := monitor.observer("model")) is not None:
                self._serve(observer, request.id, trace)
                observer.close()
            monitor.ended(request, HttpEnd("/x", 200, "", 1.0))
        deadline = time.monotonic() + self.close_s
        while set(threading.enumerate()) - before and time.monotonic() < deadline:
            time.sleep(QUICK_S)
        assert set(threading.enumerate()) <= before, "a thread goes on"

    def test_closing_twice_is_harmless(self) -> None:
        """Also without any event."""
        monitor = self.make()
        monitor.close()
        monitor.close()

    # Helpers

    @contextmanager
    def _made(self) -> Iterator[Monitor]:
        """Yield a new monitor, and close it."""
        monitor = self.make()
        try:
            yield monitor
        finally:
            monitor.close()

    def _request(self) -> HttpRequest:
        return HttpRequest("req-1", "POST", 1.0, TRACEPARENT, "a=b")

    def _serve(self, observer: Observer, request_id: str, trace: str = "") -> RequestFacts:
        """Report an answered request."""
        params = SamplingParams()
        facts = RequestFacts(request_id, "model", "", params, 7, (4,), prompt_s=0.1, trace=trace)
        observer.accepted(facts, 1.0)
        observer.first_token(facts, 2.0)
        observer.tokens(facts, Chunk(0, (), (Sample(1),), "stop"), 3.0)
        observer.finished(facts, self._end(), 3.0)
        return facts

    def _fail(self, observer: Observer, error: EngineError) -> RequestFacts:
        """Report a request that fails after its first token."""
        facts = RequestFacts("req-1", "model", "", SamplingParams(), 7, (4,), prompt_s=0.1)
        observer.accepted(facts, 1.0)
        observer.first_token(facts, 2.0)
        observer.tokens(facts, Chunk(0, (), (Sample(1),)), 2.0)
        observer.failed(facts, error, 3.0)
        return facts

    def _serve_beside(self, observer: Observer, names: Seq[str]) -> None:
        """Report answered requests of different length and speed that overlap."""
        requests = [
            RequestFacts(name, "model", "", SamplingParams(), 7 + n, prompt_s=float(n))
            for n, name in enumerate(names)
        ]
        for n, request in enumerate(requests):
            observer.accepted(request, 10.0 + n)
        for n, request in enumerate(requests):
            observer.first_token(request, 12.0 + 2 * n)
        for step in range(4):
            for n, request in enumerate(requests):
                for _ in range(1 + n):
                    observer.tokens(request, Chunk(0, (), (Sample(1),)), 20.0 + 3 * step + n)
        for n, request in enumerate(requests):
            observer.finished(request, self._end(), 40.0 + 5 * n)

    def _check_series(self, monitor: Monitor, expected: Monitor) -> None:
        """Fail if two monitors have other numbers, except those of processes and clocks."""
        pages = [self._page(each, "text/plain") for each in (monitor, expected)]
        found, wanted = (_series(page) for page in pages)
        assert found == wanted

    def _end(self) -> RequestEnd:
        images = (ImageTimings(Stage(0.1, 0.1), Stage(0.2, 0.1), Stage(0.3, 0.1), Stage(1.0, 0.1)),)
        timings = Timings(0.1, 0.0, 0.2, 0.3, 0.9, images)
        return RequestEnd(("stop",), Usage(7, 1, 0, (4,)), timings)

    def _page(self, monitor: Monitor, accept: str = "") -> Page | None:
        stats = RunnerStats(1, 0, 0, 0, {"num_steps": 1}, {}, 5)
        models = (
            ModelState("model", "ready", {"ready": 1}, 1.0, 1, 0, 10, 10, stats.counters, stats),
            ModelState("away", "unloaded", {}, 0.0, 0, 0, None, 0, {}, None),
        )
        state = ServerState("ready", models, 1, {"requests": (1, 9)}, {"x": 1}, 0)
        return monitor.page(state, accept)


def _series(page: Page | None) -> dict[str, float]:
    """Return the values of a page in Prometheus' text format, by name and labels."""
    text = "" if page is None else page.content.decode(errors="replace")
    found = [SERIES.fullmatch(line) for line in text.splitlines()]
    return {
        each["series"]: round(float(each["value"]), 6)  # sums depend on their order
        for each in found
        if each and not each["name"].startswith(OF_PROCESS) and each["name"][-8:] != "_created"
    }
