"""What every monitor must do."""

import gc
import weakref

import pytest

from vlmkit.ask.completion import Chunk, Timings, Usage
from vlmkit.ask.runner_stats import RunnerStats
from vlmkit.ask.sample import Sample
from vlmkit.ask.sampling import SamplingParams
from vlmkit.ask.stage import ImageTimings, Stage
from vlmkit.errors import EngineError
from vlmkit.seams.monitor import HttpEnd, HttpRequest, ModelState, Monitor, Page, ServerState
from vlmkit.seams.observer import RequestEnd, RequestFacts

ODD = ('"', "\n", "\\", "é", "\ud800", "{}", "x" * 4096)


class MonitorContract:
    """Inherit, override :meth:`make`, and run pytest."""

    def make(self) -> Monitor:
        """Return a fresh monitor."""
        raise NotImplementedError

    def test_it_takes_the_whole_life_of_a_request(self) -> None:
        """Of one that is answered, one that fails, and one of a path that is not there."""
        monitor = self.make()
        observer = monitor.observer("model")
        request = self._request()
        trace = monitor.began(request)
        assert isinstance(trace, str)
        if observer is not None:
            facts = RequestFacts(
                request.id, "model", "", SamplingParams(), 7, (4,), prompt_s=0.1, trace=trace
            )
            observer.accepted(facts, 1.0)
            observer.first_token(facts, 2.0)
            observer.tokens(facts, Chunk(0, (), (Sample(1),), "stop"), 3.0)
            observer.finished(facts, self._end(), 3.0)
            failing = RequestFacts("other", "model", "", SamplingParams(), 7, trace=trace)
            observer.failed(failing, EngineError("the engine failed"), 4.0)
            observer.close()
        monitor.ended(request, HttpEnd("/v1/chat/completions", 200, "", 2.0))
        lost = self._request()
        monitor.began(lost)
        monitor.ended(lost, HttpEnd("", 404, "not_found", 0.0))
        monitor.lagged(0.0)
        monitor.close()

    @pytest.mark.parametrize("text", ODD)
    def test_whatever_clients_send_is_taken(self, text: str) -> None:
        """Ids, methods and traces come from outside."""
        monitor = self.make()
        request = HttpRequest(text, text, 1.0, text, text)
        monitor.began(request)
        monitor.ended(request, HttpEnd("/x", 200, "", 1.0))
        self._page(monitor)
        monitor.close()

    def test_a_page_is_bytes_of_a_kind_and_never_shrinks_to_nothing(self) -> None:
        """Or there is none, always."""
        monitor = self.make()
        pages = [self._page(monitor, accept) for accept in ("", "*/*", "text/html", "\0;;q=x")]
        request = self._request()
        monitor.began(request)
        monitor.ended(request, HttpEnd("/x", 200, "", 1.0))
        pages.append(self._page(monitor))
        assert len({page is None for page in pages}) == 1
        for page in pages:
            assert page is None or (page.content and "/" in page.media_type)
        monitor.close()

    def test_a_request_that_is_over_is_let_go(self) -> None:
        """A monitor runs for months."""
        monitor = self.make()
        request = self._request()
        gone = weakref.ref(request)
        monitor.began(request)
        monitor.ended(request, HttpEnd("/x", 200, "", 1.0))
        del request
        gc.collect()
        assert gone() is None
        monitor.close()

    def test_closing_twice_is_harmless(self) -> None:
        """Also of one that saw nothing."""
        monitor = self.make()
        monitor.close()
        monitor.close()

    def _request(self) -> HttpRequest:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        return HttpRequest("req-1", "POST", 1.0, trace, "a=b")

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
