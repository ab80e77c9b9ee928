"""Traces and metrics of requests, as an OTLP collector receives them."""

import pytest
from collector import attributes, collecting
from monitored_server import messages_with, running_server, scripted

from vlmkit.errors import ConfigError
from vlmkit_monitor import spans as genai
from vlmkit_monitor.otlp import OtlpMonitor
from vlmkit_monitor.settings import OtlpSettings
from vlmkit_testing import MonitorContract

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACE = {"traceparent": f"00-{TRACE_ID}-{PARENT}-01"}


class TestOtlpMonitor(MonitorContract):
    @pytest.fixture(autouse=True)
    def _collector(self, monkeypatch):
        with collecting() as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
            yield

    def make(self):
        return OtlpMonitor()


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """Return the data that a server sends for a few requests."""
    with collecting() as collector:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        with running_server(tmp_path_factory.mktemp("otlp"), ("otlp",), environ=environ) as server:
            url = f"{server.url}/v1/chat/completions"
            body = {"model": "mock", "messages": messages_with((31, 9), (9, 31)), "max_tokens": 20}
            answer = server.http.post(url, json=body, headers=TRACE)
            assert answer.status_code == 200
            unsampled = {"traceparent": TRACE["traceparent"][:-2] + "00"}
            secret = scripted(text="top secret words")
            said = {"model": "mock", "messages": [{"role": "user", "content": secret}]}
            assert server.http.post(url, json=said, headers=unsampled).status_code == 200
            assert server.ask(secret, stream=True, stop=["secret stop"]).status_code == 200
            assert server.ask(scripted(text="x", fail_at_token=0)).status_code == 500
            assert server.ask(model="nobody").status_code == 404
            assert server.http.get(f"{server.url}/healthz").status_code == 200
            collector.answer = answer.json()
        yield collector


posix = pytest.mark.posix


def of_trace(collector):
    return [span for span in collector.traces if span.trace_id.hex() == TRACE_ID]


@posix
def test_one_trace_covers_the_client_and_every_stage_of_every_image(collected):
    spans = of_trace(collected)
    (http,) = [span for span in spans if span.parent_span_id.hex() == PARENT]
    assert http.name == "POST /v1/chat/completions"
    assert http.kind == 2  # server
    (chat,) = [span for span in spans if span.parent_span_id == http.span_id]
    assert chat.name == "chat mock"
    stages = [span for span in spans if span.parent_span_id == chat.span_id]
    names = sorted((span.name, attributes(span).get("vlmkit.image.index")) for span in stages)
    images = [(f"{stage} image", i) for stage in ("decode", "encode", "fetch", "preprocess")
              for i in (0, 1)]  # fmt: skip
    whole = [(name, None) for name in ("decode", "prefill", "prepare", "queue")]
    assert sorted(names, key=str) == sorted([*images, *whole], key=str)
    assert len(spans) == 2 + len(stages)
    slack_ns = 50_000_000  # the wall clock and the monotonic clock differ slightly
    for span in stages:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert chat.start_time_unix_nano - slack_ns <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= chat.end_time_unix_nano + slack_ns


@posix
def test_the_span_of_an_answer_has_the_attributes_of_the_conventions(collected):
    usage = collected.answer["usage"]
    (chat,) = [span for span in of_trace(collected) if span.name == "chat mock"]
    found = attributes(chat)
    assert found[genai.OPERATION] == "chat"
    assert found[genai.REQUEST_MODEL] == "mock"
    assert found[genai.INPUT_TOKENS] == usage["prompt_tokens"]
    assert found[genai.OUTPUT_TOKENS] == usage["completion_tokens"]
    assert found[genai.IMAGE_TOKENS] == usage["prompt_tokens_details"]["image_tokens"]
    assert found[genai.RESPONSE_ID] == collected.answer["id"]
    assert found[genai.MAX_TOKENS] == 20
    assert found[genai.FINISH_REASONS] == [collected.answer["choices"][0]["finish_reason"]]


@posix
def test_an_unsampled_request_has_no_trace_but_is_counted(collected):
    assert len([span for span in of_trace(collected) if span.name == "chat mock"]) == 1
    (duration,) = [m for m in collected.metrics if m.name == genai.REQUEST_DURATION]
    points = duration.histogram.data_points
    ok = [point for point in points if genai.ERROR_TYPE not in attributes(point)]
    assert sum(point.count for point in ok) == 3


@posix
def test_a_failure_is_a_span_with_its_kind_and_no_text(collected):
    (failed,) = [span for span in collected.spans("chat mock") if span.status.code == 2]
    assert attributes(failed)[genai.ERROR_TYPE] == "EngineError"
    codes = {attributes(span).get("http.response.status_code") for span in collected.traces}
    assert {200, 404, 500} <= codes


@posix
def test_the_metrics_of_the_conventions_are_sent(collected):
    names = {metric.name for metric in collected.metrics}
    assert names == {
        genai.REQUEST_DURATION,
        genai.TIME_TO_FIRST_TOKEN,
        genai.TIME_PER_OUTPUT_TOKEN,
        genai.TOKEN_USAGE,
    }
    (first,) = [m for m in collected.metrics if m.name == genai.TIME_TO_FIRST_TOKEN]
    (point,) = first.histogram.data_points
    assert point.count == 3
    assert tuple(point.explicit_bounds) == genai.FIRST_TOKEN_BOUNDS
    assert attributes(point)[genai.PROVIDER] == "vlmkit"


@posix
def test_no_content_is_sent_and_no_probe_is_traced(collected):
    sent = b"".join(collected.bodies)
    for content in (b"secret", b"hello", b"base64", b"mock was told"):
        assert content not in sent
    assert not any("healthz" in span.name for span in collected.traces)
    assert {resource["service.name"] for resource in collected.resources} == {"vlmkit"}


def test_traces_and_metrics_can_be_disabled(monkeypatch):
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monitor = OtlpMonitor(OtlpSettings(traces=False, metrics=False))
        monitor.observer("model").close()
        monitor.close()
    assert collector.bodies == []


def test_an_unsupported_protocol_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="speaks http/protobuf"):
        OtlpMonitor()


@posix
def test_an_unreachable_collector_delays_no_answer(tmp_path):
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_EXPORT_TIMEOUT": "1"}
    environ |= {"OTEL_EXPORTER_OTLP_TIMEOUT": "1", "OTEL_LOG_LEVEL": "critical"}
    with running_server(tmp_path, ("otlp",), environ=environ) as server:
        assert server.ask().status_code == 200
