"""Monitors receive each request once, cannot harm the server, and cost nothing if absent."""

import asyncio
import logging
import threading

import pytest
from running_server import chat, eventually, mock_pipeline, running, scripted

from vlmkit.running.faults.attribution import ComponentNames
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_server.exchange.monitors import Monitors
from vlmkit_server.fleet.model_spec import ModelSpec
from vlmkit_server.interfaces.monitor import Monitor, Page
from vlmkit_server.operate import metrics
from vlmkit_server.settings.fleet import FleetSettings

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OWN = "00-0af7651916cd43dd8448eb211c80319c-00000000000000ff-01"


class RecordingMonitor(Monitor):
    """Records all events."""

    def __init__(self, trace=OWN):
        self.trace = trace
        self.begun, self.ends, self.lags = [], [], []
        self.threads = set()
        self.num_closed = 0

    def began(self, request):
        self.begun.append(request)
        self.threads.add(threading.current_thread().name)
        return self.trace

    def ended(self, request, end):
        self.ends.append((request, end))

    def lagged(self, lag_s):
        self.lags.append(lag_s)

    def page(self, state, accept):
        self.state = state
        self.threads.add(threading.current_thread().name)
        return Page(f"{state.status} {accept}".encode(), "text/plain")

    def close(self):
        self.num_closed += 1

    def last(self):
        assert eventually(lambda: len(self.begun) == len(self.ends))
        return self.ends[-1][1]


@pytest.fixture
def monitor():
    return RecordingMonitor()


@pytest.fixture
def server(monitor):
    with running(monitors={"notes": monitor}) as server:
        yield server


def test_each_request_is_reported_once_with_its_route_and_status(server, monitor):
    for path, route, status in (
        ("/v1/models", "/v1/models", 200),
        ("/v1/models/mock", "/v1/models/{name}", 200),
        ("/v1/models/none", "/v1/models/{name}", 404),
        ("/nowhere/at/all", "", 404),
    ):
        assert server.get(path).status_code == status
        end = monitor.last()
        assert (end.route.partition("{")[0], end.status) == (route.partition("{")[0], status)
    assert len(monitor.begun) == 4
    assert [request for request, _ in monitor.ends] == monitor.begun


def test_an_error_code_is_reported_in_streams_too(server, monitor):
    server.post(chat(temperature=99))
    assert (monitor.last().status, monitor.last().code) == (400, "invalid_request")
    server.post(chat(scripted(text="abc", fail_at_token=1), stream=True))
    assert (monitor.last().status, monitor.last().code) == (200, "engine_error")
    server.post(chat())
    assert (monitor.last().status, monitor.last().code) == (200, "")


def test_a_disconnect_before_the_answer_is_reported_as_499(server, monitor):
    with server.connect(chat(scripted(text="x", prefill_latency_s=0.2), max_tokens=3)):
        assert eventually(lambda: server.runner().stats().num_running == 1)
    assert eventually(lambda: len(monitor.ends) == 1)
    assert monitor.last().status == 499


def test_the_trace_returned_by_the_monitor_reaches_the_model(server, monitor):
    traces = []
    pipeline = server.runner()
    submit = type(pipeline).asubmit

    async def record(self, request, admit=None):
        traces.append(request.trace)
        return await submit(self, request, admit)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(pipeline), "asubmit", record)
        server.post(chat(), headers={"traceparent": TRACE, "tracestate": "a=b"})
        server.post({"model": "mock", "prompt": "x"}, "/v1/completions")
    assert traces == [OWN, OWN]
    first, second = monitor.begun
    assert (first.traceparent, first.tracestate) == (TRACE, "a=b")
    assert (second.traceparent, second.tracestate) == ("", "")


def test_an_oversized_tracestate_header_is_ignored(server, monitor):
    server.get("/v1/models", headers={"tracestate": "x" * 5000})
    assert monitor.begun[0].tracestate == ""


def test_lags_of_the_event_loop_are_reported(server, monitor):
    assert eventually(lambda: len(monitor.lags) > 2)
    assert min(monitor.lags) >= 0.0


def test_the_metrics_page_is_written_outside_the_event_loop(server, monitor):
    answer = server.get("/metrics", headers={"accept": "x/y"})
    assert answer.text == "ready x/y"
    assert answer.headers.get_list("content-type") == ["text/plain"]
    assert len(monitor.threads) == 2
    assert [model.name for model in monitor.state.models] == ["mock"]
    assert monitor.state.resources["requests"][1] == server.service.settings.max_requests


def test_a_slow_scrape_delays_no_request_and_too_many_are_refused(monkeypatch):
    go_on = threading.Event()

    class Slow(RecordingMonitor):
        def page(self, state, accept):
            go_on.wait()
            return super().page(state, accept)

    monkeypatch.setattr(metrics, "MAX_WAITING", 2)
    with running(monitors={"slow": Slow()}) as server:
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(server.get("/metrics").status_code))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        assert eventually(lambda: answers == [429])
        assert server.post(chat()).status_code == 200
        go_on.set()
        for thread in threads:
            thread.join()
    assert sorted(answers) == [200, 200, 429]


def test_a_monitor_that_raises_is_disabled_and_logged_once(caplog):
    class Raises(Monitor):
        def began(self, request):
            raise RuntimeError("a bug")

    good = RecordingMonitor()
    component_names = ComponentNames({"monitor.bad": "monitor 'bad' from 'vlmkit-bad'"})
    with running(
        monitors={"bad": Raises(), "good": good}, component_names=component_names
    ) as server:
        for _ in range(3):
            assert server.post(chat()).status_code == 200
    assert len(good.begun) == 3
    records = [r for r in caplog.records if "disabled" in r.getMessage()]
    assert [(r.levelno, r.getMessage()) for r in records] == [
        (logging.ERROR, "monitor 'bad' from 'vlmkit-bad' failed and is disabled")
    ]


def test_metrics_are_not_found_without_a_monitor_that_writes_them():
    class Silent(Monitor):
        pass

    with running(monitors={"silent": Silent()}) as server:
        assert server.get("/metrics").status_code == 404
    with running() as server:
        assert server.get("/metrics").status_code == 404


def test_a_server_without_monitors_records_nothing():
    monitors = Monitors({})
    assert not monitors
    assert monitors.began({}, "req-1") is None

    async def tasks():
        await monitors.start()
        return len(asyncio.all_tasks())

    assert asyncio.run(tasks()) == 1


def test_counters_of_an_unloaded_model_are_kept():
    def load():
        return Pipeline(tokenizer=MockTokenizer(), engine=MockEngine(), name="mock")

    monitor = RecordingMonitor()
    offer = ModelSpec(load=load, when="use")
    fleet = FleetSettings(manage=True)
    with running({"mock": offer}, monitors={"notes": monitor}, fleet=fleet) as server:
        for number in range(1, 3):
            assert server.post(chat("hi", max_tokens=4)).status_code == 200
            assert server.post({"model": "mock"}, "/v1/models/unload").status_code == 200
            server.get("/metrics")
            (model,) = monitor.state.models
            assert (model.state, model.stats) == ("unloaded", None)
            assert model.counters["num_finished"] == number
            assert model.changes["ready"] == model.changes["unloading"] == number


def test_all_monitors_are_closed_including_disabled_ones():
    class Raises(RecordingMonitor):
        def began(self, request):
            raise RuntimeError("a bug")

    both = Raises(), RecordingMonitor()
    with running({"mock": mock_pipeline()}, monitors=dict(enumerate(both))) as server:
        server.get("/healthz")
        server.service.monitors.close()
    assert [each.num_closed for each in both] == [1, 1]
