"""``/metrics`` of a real server: every metric exists after a load and has the right value."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from monitored_server import eventually, messages_with, running_server, scripted

from vlmkit_monitor.names import METRICS
from vlmkit_monitor.prometheus import PrometheusMonitor
from vlmkit_monitor.settings import PrometheusSettings
from vlmkit_monitor.vllm_names import DASHBOARD_SERIES
from vlmkit_server.auth import key as keys
from vlmkit_server.interfaces.monitor import HttpEnd, HttpRequest, ServerState
from vlmkit_testing import MonitorContract

posix = pytest.mark.posix


class TestPrometheusMonitor(MonitorContract):
    def make(self):
        return PrometheusMonitor()


EMPTY = ServerState("ready", (), 0, {}, {}, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("served")) as server:
        load(server)
        yield server


def load(server):
    """Send one request of each type."""
    assert server.ask().status_code == 200
    assert server.ask(scripted(text="ab " * 40), stream=True, max_tokens=100).status_code == 200
    for _ in range(2):  # the second request encodes nothing
        body = {"model": "mock", "messages": messages_with((31, 9), (9, 31)), "secret_field": 1}
        assert server.http.post(f"{server.url}/v1/chat/completions", json=body).status_code == 200
    assert server.ask(scripted(reasoning="hm", text="so"), n=2, max_tokens=3).status_code == 200
    assert server.ask(scripted(text="x", fail_at_token=0)).status_code == 500
    assert server.ask(tools=[tool()]).status_code == 200
    assert server.ask(model="nobody").status_code == 404
    assert server.ask(model="other").status_code == 200
    assert server.http.get(f"{server.url}/nowhere").status_code == 404
    wanted = 6  # finished requests of model mock
    assert eventually(lambda: (done(server) or 0) >= wanted)


def tool():
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def done(server):
    return server.value("vlmkit_request_seconds_count", model="mock")


@posix
def test_every_metric_exists_after_a_load(server):
    shown = {name for name, _ in server.samples()}
    missing = {
        metric.name
        for metric in METRICS
        if not {metric.name, f"{metric.name}_count", f"{metric.name}_bucket"} & shown
    }
    assert not missing


@posix
def test_every_series_of_vllms_dashboard_exists_after_a_load(server):
    models = {name for name, labels in server.samples() if ("model_name", "mock") in labels}
    assert set(DASHBOARD_SERIES) <= models


@posix
def test_counters_match_the_requests(server):
    before = server.samples()
    answer = server.ask(scripted(text="abcde"), max_tokens=50).json()["usage"]
    assert eventually(lambda: done(server) == before["vlmkit_request_seconds_count", MOCK] + 1)
    after = server.samples()

    def grown(name, *labels):
        key = (name, tuple(sorted((*MOCK, *labels))))
        return after[key] - before.get(key, 0)

    assert grown("vlmkit_requests_total") == 1
    assert grown("vlmkit_choices_total", ("finish_reason", "stop")) == 1
    assert grown("vlmkit_prompt_tokens_total", ("kind", "text")) == answer["prompt_tokens"]
    assert grown("vlmkit_prompt_tokens_total", ("kind", "image")) == 0
    cached = answer["prompt_tokens_details"]["cached_tokens"]
    assert grown("vlmkit_cached_prompt_tokens_total") == cached
    num = answer["completion_tokens"]
    assert grown("vlmkit_generated_tokens_total") == num
    assert grown("vlmkit_answer_tokens_total", ("kind", "text")) == num
    assert grown("vlmkit_token_gap_seconds_count") == num - 1
    assert grown("vlmkit_time_to_first_token_seconds_count") == 1
    assert grown("vlmkit_request_generated_tokens_sum") == num
    vllm = (("engine", "0"), ("model_name", "mock"))
    key = ("vllm:generation_tokens_total", vllm)
    assert after[key] - before[key] == num


MOCK = (("model", "mock"),)


@posix
def test_each_stage_of_each_image_is_counted(server):
    stages = ("fetch", "decode", "preprocess", "encode")

    def counts():
        found = server.samples()
        return [
            found["vlmkit_image_seconds_count", (("model", "mock"), ("stage", stage))]
            for stage in stages
        ]

    before, num = counts(), done(server)
    assert server.ask(messages=messages_with((77, 9), (9, 78), (79, 9))).status_code == 200
    assert eventually(lambda: done(server) == num + 1)
    assert [b - a for a, b in zip(before, counts(), strict=True)] == [3, 3, 3, 3]


@posix
def test_refusals_are_counted_by_code_and_routes_by_their_templates(server):
    for number in range(3):
        server.http.get(f"{server.url}/v1/models/secret-{number}")
        server.http.request(f"X{number}", f"{server.url}/secret-{number}")
    found = server.samples()
    route = [dict(labels) for name, labels in found if name == "vlmkit_http_requests_total"]
    assert {"method": "GET", "route": "/v1/models/{model_id}", "status": "404"} in [
        each | {"route": re.sub(r"\{.*\}", "{model_id}", each["route"])} for each in route
    ]
    assert {each["method"] for each in route} <= {"GET", "POST", "other"}
    codes = {dict(labels)["code"] for name, labels in found if name == "vlmkit_refusals_total"}
    assert {"model_not_found", "not_found"} <= codes
    assert "secret" not in json.dumps(list(map(str, found)))


@posix
def test_a_model_that_loads_later_has_its_states(server):
    found = server.samples()
    states = {
        dict(labels)["state"]: value
        for (name, labels), value in found.items()
        if name == "vlmkit_model_state" and ("model", "other") in labels
    }
    assert states.pop("ready") == 1
    assert set(states.values()) == {0}
    loads = ("vlmkit_model_state_changes_total", (("model", "other"), ("state", "ready")))
    assert found[loads] == 1


@posix
def test_scrapes_under_load_are_complete_and_affect_no_answer(server):
    text = scripted(text="ab " * 100)

    def streamed(_):
        return server.ask(text, stream=True, max_tokens=200).text.count('"content"')

    with ThreadPoolExecutor(12) as pool:
        answers = pool.map(streamed, range(8))
        pages = list(pool.map(lambda _: server.samples(), range(12)))
        assert len(set(answers)) == 1
    names = {name for name, _ in pages[-1]}
    assert all(names >= {name for name, _ in page} for page in pages)
    for page in pages:  # the buckets of a histogram always add up to its count
        for (name, labels), value in page.items():
            if name.endswith("_count"):
                bucket = name.removesuffix("_count") + "_bucket"
                assert page[bucket, tuple(sorted((*labels, ("le", "+Inf"))))] == value


@posix
def test_clients_can_request_openmetrics(server):
    accept = {"accept": "application/openmetrics-text;version=1.0.0"}
    answer = server.http.get(f"{server.url}/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


@posix
def test_metrics_of_the_process_are_included(server):
    names = {name for name, _ in server.samples()}
    assert {"process_resident_memory_bytes", "process_open_fds"} <= names
    assert "process_cpu_seconds_total" in names


@posix
def test_a_scrape_needs_a_key_with_the_scope_if_keys_are_required(tmp_path):
    issued = {scope: keys.new_key(scope, (scope,)) for scope in ("chat", "metrics", "admin")}
    file = tmp_path / "keys.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(key) + b"\n" for key, _ in issued.values()))
    file.chmod(0o600)
    with running_server(tmp_path, more=f'[server]\nkeys_file = "{file}"') as server:
        statuses = {
            scope: server.http.get(
                f"{server.url}/metrics", headers={"authorization": f"Bearer {secret}"}
            ).status_code
            for scope, (_, secret) in issued.items()
        }
        statuses["none"] = server.http.get(f"{server.url}/metrics").status_code
    assert statuses == {"chat": 403, "metrics": 200, "admin": 200, "none": 401}


@posix
def test_without_monitors_there_is_no_metrics_page(tmp_path):
    with running_server(tmp_path, monitors=()) as server:
        assert server.http.get(f"{server.url}/metrics").status_code == 404


def test_the_reference_page_lists_vllms_names():
    page = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
    monitor = PrometheusMonitor()
    monitor.observer("model")
    text = monitor.page(EMPTY, "").content.decode()
    shown = set(re.findall(r"^# TYPE (vllm:\w+|http_\w+) ", text, re.MULTILINE))
    listed = re.findall(r"^\| `(vllm:\w+|http_\w+)` ", page, re.MULTILINE)
    assert set(listed) >= shown
    whole = {re.sub(r"_(bucket|sum|count)$", "", name) for name in DASHBOARD_SERIES}
    assert whole <= set(listed)


def test_vllms_names_can_be_disabled():
    for is_wanted in (True, False):
        monitor = PrometheusMonitor(PrometheusSettings(vllm_names=is_wanted))
        monitor.observer("model")
        page = monitor.page(EMPTY, "")
        assert (b"vllm:" in page.content) == is_wanted


def test_counters_of_an_unloaded_model_are_kept():
    monitor = PrometheusMonitor()
    for number in range(1, 4):
        observer = monitor.observer("model")
        observer.tally.count("requests_total")
        observer.close()
        page = monitor.page(EMPTY, "").content.decode()
        assert f'vlmkit_requests_total{{model="model"}} {number}.0' in page
    assert sum(map(len, monitor._observers.values())) == 1


def test_clients_cannot_create_unbounded_series():
    monitor = PrometheusMonitor()
    for number in range(10_000):
        request = HttpRequest(f"{number}", f"M{number}", 1.0)
        monitor.ended(request, HttpEnd("", 404, f"code{number}", 0.0))
    page = monitor.page(EMPTY, "").content
    assert page.count(b"\n") < 1000


def test_the_reference_page_lists_all_metrics():
    page = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
    rows = [
        f"| `{m.name}` | {m.type} | {', '.join(f'`{label}`' for label in m.labels) or 'none'} "
        f"| {m.meaning} |"
        for m in METRICS
    ]
    assert [line for line in page.splitlines() if line.startswith("| `vlmkit_")] == rows
