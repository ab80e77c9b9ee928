"""``vlmkit bench`` measures what a server does, and counts what goes wrong by name."""

import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from scripted_server import (
    CLOSE,
    CLOSE_ON_REQUEST,
    DONE,
    HEAD,
    ScriptedServer,
    answer,
    delta,
    event,
    finish,
    refusal,
    usage,
)

from vlmkit.errors import RequestError
from vlmkit_bench.client import Outcome
from vlmkit_bench.command import bench
from vlmkit_bench.summary import summary_of
from vlmkit_bench.workload import Range, Shape, Sizes, image_url


def run(*args):
    """Run the command; return its standard output."""
    found = CliRunner().invoke(bench, [str(each) for each in args], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.fixture
def result_of(tmp_path):
    """Return a function that measures a server and returns the JSON result."""

    def measure(server, *args, warm_up=0):
        file = tmp_path / "result.json"
        run(server.url, *args, "--warm-up", warm_up, "--output", file)
        return json.loads(file.read_text())

    return measure


def measured(steps, result_of, *args):
    with ScriptedServer(steps).running() as server:
        return result_of(server, *args), server


# What a complete answer is.


def test_first_event_first_reasoning_and_first_text_are_told_apart(result_of):
    def steps(number, body):
        opening = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        return [
            *(HEAD, opening, 0.1, delta(reasoning_content="so"), 0.1, delta(content="yes")),
            *(0.05, delta(content="."), finish(), usage(5, 3), DONE),
        ]

    result, _ = measured(steps, result_of, "-n", 1)
    (outcome,) = result["outcomes"]
    first_event, reasoning, text = (
        outcome[f"first_{name}_s"] - outcome["due_s"] for name in ("event", "reasoning", "text")
    )
    assert first_event < reasoning < text
    assert reasoning >= 0.1  # the server waits that long after the request, or longer
    assert text >= 0.2
    assert len(outcome["gaps_s"]) == 2
    assert result["summary"]["latencies"]["gap"]["num_samples"] == 2
    assert result["summary"]["events_per_token"] == 1.0


def test_a_tool_call_is_text(result_of):
    call = {"index": 0, "function": {"name": "mark", "arguments": "{}"}}
    steps = [HEAD, delta(tool_calls=[call]), finish("tool_calls"), usage(5, 9), DONE]
    result, _ = measured(lambda *_: steps, result_of, "-n", 1)
    assert result["outcomes"][0]["first_text_s"] is not None


def test_events_of_several_tokens_show_in_the_events_for_each_token(result_of):
    steps = [HEAD, delta(content="four tokens at once"), finish(), usage(5, 4), DONE]
    result, _ = measured(lambda *_: steps, result_of, "-n", 3)
    assert result["summary"]["events_per_token"] == 0.25
    assert result["summary"]["completion_tokens"] == 12
    assert result["summary"]["prompt_tokens"] == 15


def test_an_event_in_several_pieces_is_one_event(result_of):
    whole = delta(content="cut")
    steps = [HEAD, whole[:9], 0.02, whole[9:-1], 0.02, whole[-1:], finish(), usage(5, 1), DONE]
    result, _ = measured(lambda *_: steps, result_of, "-n", 1)
    assert result["outcomes"][0]["num_events"] == 1
    assert result["summary"]["num_succeeded"] == 1


def test_comments_and_carriage_returns_of_a_stream_are_no_events(result_of):
    text = delta(content="a").replace(b"\n", b"\r\n")
    steps = [HEAD, b": ping\n\n", text, finish(), usage(5, 1), DONE.replace(b"\n", b"\r\n")]
    result, _ = measured(lambda *_: steps, result_of, "-n", 1)
    assert result["summary"]["num_succeeded"] == 1
    assert result["outcomes"][0]["num_events"] == 1


# What goes wrong.

FAILURES = {
    "early_end": [HEAD, delta(content="a")],
    "truncated_event": [HEAD, delta(content="a"), b'data: {"choices": [{"del'],
    "invalid_event": [HEAD, b"data: <html>\n\n", DONE],
    "error_event:overloaded": [HEAD, delta(content="a"), event(error={"code": "overloaded"})],
    "error_event": [HEAD, event(error="out of memory in kernel \x1b[31m")],
    "http_429:rate_limit_exceeded": refusal(429, code="rate_limit_exceeded", message="later"),
    "http_500": refusal(500, code="a code\x1b[31m with a text"),
    "no_event_stream": [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"],
    "connection_lost": [CLOSE],
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_request_is_counted_by_name_and_not_in_percentiles(name, result_of):
    def steps(number, body):
        return FAILURES[name] if number % 2 else answer(3)

    result, _ = measured(steps, result_of, "-n", 8)
    summary = result["summary"]
    assert summary["errors"] == {name: 4}
    assert summary["num_requests"] == 8
    assert summary["num_succeeded"] == 4
    assert {each["num_samples"] for each in summary["latencies"].values()} == {4, 8}
    assert summary["completion_tokens"] == 12
    assert "\x1b" not in json.dumps(result)


def test_a_request_is_sent_again_if_the_server_closed_the_connection_of_an_earlier_one(result_of):
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    events = b"".join([delta(content="a"), finish(), usage(5, 1), DONE])
    whole = b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events)
    result, server = measured(lambda *_: [head, whole, CLOSE_ON_REQUEST], result_of, "-n", 3)
    assert result["summary"]["num_succeeded"] == len(server.bodies) == 3
    assert [each["num_resent"] for each in result["outcomes"]] == [0, 1, 1]
    assert result["summary"]["num_resent"] == 2


def test_a_request_without_usage_succeeds_and_is_in_no_count_of_tokens(result_of):
    def steps(number, body):
        return [HEAD, delta(content="a"), finish(), DONE] if number % 2 else answer(5)

    result, _ = measured(steps, result_of, "-n", 4)
    summary = result["summary"]
    assert summary["num_succeeded"] == 4
    assert summary["num_without_usage"] == 2
    assert summary["completion_tokens"] == 10
    assert summary["events_per_token"] == 1.0


def test_a_request_that_takes_too_long_is_a_timeout(result_of):
    result, _ = measured(lambda *_: [HEAD, 60.0], result_of, "-n", 1, "--timeout", 0.3)
    assert result["summary"]["errors"] == {"timeout": 1}


def test_an_endless_event_fails_its_request(result_of, monkeypatch):
    monkeypatch.setattr("vlmkit_bench.client.MAX_EVENT_BYTES", 1000)
    result, _ = measured(lambda *_: [HEAD, b"data: " + b"x" * 5000], result_of, "-n", 1)
    assert result["summary"]["errors"] == {"answer_too_long": 1}


def test_a_server_that_cannot_be_reached_is_one_error():
    with pytest.raises(RequestError, match="connection_failed"):
        run("http://127.0.0.1:9/v1")


def test_several_models_need_a_choice():
    with ScriptedServer(lambda *_: answer(1), models=("one", "two")).running() as server:
        with pytest.raises(RequestError, match="one, two"):
            run(server.url)
        run(server.url, "--model", "two", "-n", 1)
    assert {body["model"] for body in server.bodies} == {"two"}


# What is sent.


def test_no_two_prompts_or_images_are_equal(result_of):
    _, server = measured(lambda *_: answer(1), result_of, "-n", 20, "--image", "32x32")
    contents = [body["messages"][0]["content"] for body in server.bodies]
    images = {parts[0]["image_url"]["url"] for parts in contents}
    texts = {parts[1]["text"] for parts in contents}
    assert len(images) == len(texts) == 20


def test_a_shared_prefix_and_repeated_images_are_shared(result_of):
    args = ("-n", 20, "--shared-prefix", 30, "--prompt-words", 40)
    _, server = measured(
        lambda *_: answer(1), result_of, *args, "--image", "32x32", "--repeat-images", 3
    )
    contents = [body["messages"][0]["content"] for body in server.bodies]
    prefixes = {tuple(parts[1]["text"].split()[:30]) for parts in contents}
    assert len(prefixes) == 1
    assert len({parts[1]["text"] for parts in contents}) == 20
    assert len({parts[0]["image_url"]["url"] for parts in contents}) == 3


def test_a_load_is_a_function_of_its_seed(result_of):
    args = ("-n", 6, "--prompt-words", "5..50", "--answer-tokens", "1..9", "--image", "8x8..64x64")
    bodies = []
    for seed in (1, 1, 2):
        _, server = measured(lambda *_: answer(1), result_of, *args, "--seed", seed)
        bodies.append(server.bodies)
    assert bodies[0] == bodies[1]
    assert bodies[0] != bodies[2]


def test_each_turn_has_the_answers_before(result_of):
    result, server = measured(lambda *_: answer(2), result_of, "-n", 2, "--turns", 3)
    assert result["summary"]["num_requests"] == 6
    roles = [[message["role"] for message in body["messages"]] for body in server.bodies]
    assert [len(each) for each in roles] == [1, 3, 5, 1, 3, 5]
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": "word word "}


def test_fields_and_key_are_sent_and_the_key_is_in_no_file(result_of, monkeypatch):
    monkeypatch.setenv("BENCH_KEY", "secret-key")
    args = ("-n", 1, "--field", "ignore_eos=true", "--field", "temperature=0.5")
    result, server = measured(lambda *_: answer(1), result_of, *args, "--key-env", "BENCH_KEY")
    assert server.bodies[0]["ignore_eos"] is True
    assert server.bodies[0]["temperature"] == 0.5
    assert "Bearer secret-key" in server.headers[0]
    assert "secret-key" not in json.dumps(result)


def test_requests_of_the_warm_up_are_not_measured(result_of):
    with ScriptedServer(lambda number, _: answer(1 if number < 3 else 5)).running() as server:
        result = result_of(server, "-n", 4, warm_up=3)
    assert len(server.bodies) == 7
    assert result["summary"]["completion_tokens"] == 20


def test_a_closed_loop_has_as_many_requests_at_once_as_clients(result_of):
    steps = answer(2, first_s=0.05)
    result, server = measured(lambda *_: steps, result_of, "-n", 40, "--clients", 5)
    assert server.num_open == 5
    assert result["summary"]["num_succeeded"] == 40


def test_a_duration_ends_a_test_and_running_requests_are_awaited(result_of):
    steps = answer(1, first_s=0.4)
    result, _ = measured(lambda *_: steps, result_of, "--seconds", 0.5, "--clients", 2)
    summary = result["summary"]
    assert summary["errors"] == {}
    assert 2 <= summary["num_requests"] <= 6
    assert summary["duration_s"] >= 0.5


# The open loop.


def test_arrivals_are_a_poisson_process_of_the_rate():
    shape = Shape(Range(1, 1), Range(1, 1), rate=50.0, seed=3)
    conversations = shape.conversations()
    times = np.array([next(conversations).at_s for _ in range(20_000)])
    waits = np.diff(times)
    assert np.mean(waits) == pytest.approx(1 / 50, rel=0.03)
    assert np.std(waits) == pytest.approx(1 / 50, rel=0.03)  # an exponential distribution


def test_a_stall_of_the_server_shows_in_the_percentiles_of_the_open_loop(result_of):
    with ScriptedServer(lambda *_: []).running() as server:

        def steps(number, body):
            if number == 20:
                server.stalled_until = time.monotonic() + 2.0
            return answer(2)

        server._steps = steps
        result = result_of(server, "-n", 60, "--rate", 40)
    latency = result["summary"]["latencies"]["first_text"]
    assert result["summary"]["num_succeeded"] == 60
    assert latency["p99"] >= 1.5  # requests that arrive within the stall wait for its end
    assert latency["p90"] >= 0.9
    waits = [each["first_text_s"] - each["due_s"] for each in result["outcomes"]]
    assert sum(wait > 0.5 for wait in waits) >= 20


def test_a_trace_decides_arrivals_lengths_and_images(result_of, tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"at_s": 0.3, "prompt_words": 3, "answer_tokens": 5},
        {"at_s": 0.0, "prompt_words": 9, "answer_tokens": 6, "images": ["16x8", "8x16"]},
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    result, server = measured(lambda *_: answer(1), result_of, "--trace", trace)
    first, second = server.bodies
    assert [part["type"] for part in first["messages"][0]["content"]] == [
        *("image_url", "image_url", "text")
    ]
    assert (first["max_tokens"], second["max_tokens"]) == (6, 5)
    assert len(second["messages"][0]["content"].split()) == 3
    assert [each["due_s"] for each in result["outcomes"]] == [0.0, 0.3]
    assert result["outcomes"][1]["sent_s"] >= 0.3


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2"),
        ('{"answer_tokens": 0}', "answer_tokens must be from 1"),
        ('{"images": ["8x8..9x9"]}', "must not be a range"),
        ('{"images": ["a picture"]}', "no size"),
        ('{"words": 3}', "unknown field"),
        ('{"at_s": 1}', "in all lines or in none"),
    ],
)
def test_a_wrong_line_of_a_trace_is_named(line, problem, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("{}\n" + line)
    with (
        ScriptedServer(lambda *_: answer(1)).running() as server,
        pytest.raises(RequestError, match=problem),
    ):
        run(server.url, "--trace", trace)
    assert server.bodies == []


# The figures.

latencies = st.lists(st.floats(0.001, 100, allow_nan=False), min_size=1, max_size=300)


@given(latencies)
def test_percentiles_are_those_of_the_samples(samples):
    outcomes = [
        Outcome(number, 0, 1.0, 1.0, first_text_s=1.0 + each, end_s=1.0 + each)
        for number, each in enumerate(samples)
    ]
    found = summary_of(outcomes, {}, 0.0).latencies["first_text"]
    exact = [outcome.first_text_s - 1.0 for outcome in outcomes]
    assert found.num_samples == len(samples)
    assert [found.p50, found.p90, found.p99, found.max] == pytest.approx(
        np.percentile(exact, [50, 90, 99, 100])
    )


def test_goodput_counts_requests_within_all_limits_alone(result_of):
    def steps(number, body):
        if number == 0:
            return refusal(500)
        return answer(2, first_s=0.6 if number < 3 else 0.0)

    args = ("-n", 9, "--clients", 9, "--slo", "first_text=0.5", "--slo", "gap=30")
    result, _ = measured(steps, result_of, *args)
    assert result["summary"]["num_good"] <= 6
    assert result["summary"]["num_succeeded"] == 8
    assert result["summary"]["slo"] == {"first_text": 0.5, "gap": 30.0}


def test_two_results_are_compared_and_differing_loads_are_reported(tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    with ScriptedServer(lambda *_: answer(4)).running() as server:
        for file, clients in zip(files, (1, 2), strict=True):
            run(server.url, "-n", 6, "--clients", clients, "--output", file)
    found = CliRunner().invoke(bench, ["--compare", *map(str, files)])
    assert "first_text p99" in found.stdout
    assert "the loads differ: clients" in found.stderr
    one, other = (json.loads(file.read_text())["summary"] for file in files)
    ratio = other["requests_per_s"] / one["requests_per_s"]
    assert f"{ratio:.3f}" in found.stdout


def test_a_file_that_is_no_result_is_refused_by_name(tmp_path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"format": 1}')
    with pytest.raises(RequestError, match="is no result of vlmkit bench"):
        run("--compare", wrong, wrong)


def test_a_chart_is_an_svg_with_a_line_for_each_latency(tmp_path):
    file = tmp_path / "chart.svg"
    with ScriptedServer(lambda *_: answer(4), models=("<script>",)).running() as server:
        run(server.url, "-n", 6, "--svg", file)
    root = ET.fromstring(file.read_text())
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4  # first event, first text, gap, total
    assert "<script>" not in file.read_text()


def test_a_result_has_command_versions_and_clock(result_of):
    result, _ = measured(lambda *_: answer(1), result_of, "-n", 1)
    assert set(result["versions"]) == {"vlmkit_bench", "aiohttp", "python", "system"}
    assert result["clock"]["resolution_s"] > 0
    assert result["clock"]["started_at"].endswith("Z")
    assert result["load"]["requests"] == "1"


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--prompt-words", "9..3"), "no number or range"),
        (("--image", "640"), "no size"),
        (("--image", "99999x1"), "up to"),
        (("--slo", "speed=1"), "no limit"),
        (("--field", "a"), "no field"),
        (("--key-env", "NO_SUCH_VARIABLE"), "not set"),
    ],
)
def test_a_wrong_option_is_named(args, problem):
    with pytest.raises(RequestError, match=problem):
        run("http://127.0.0.1:9/v1", *args)


def test_an_image_of_any_size_is_a_file_of_that_size():
    import base64
    import io

    from PIL import Image

    for size in ((1, 1), (17, 3), (640, 480)):
        content = base64.b64decode(image_url("seed", size).partition(",")[2])
        assert Image.open(io.BytesIO(content)).size == size
    assert Sizes.parsed("1x2..3x4").widths == Range(1, 3)


def test_the_command_measures_a_server_of_vlmkit(tmp_path):
    file = tmp_path / "result.json"
    serving = subprocess.Popen(
        [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = next(line for line in serving.stderr if "http://" in line)
        url = "http://" + address.partition("http://")[2].split()[0].rstrip("/") + "/v1"
        args = ["-n", "12", "--clients", "3", "--image", "64x48", "--output", str(file)]
        command = [sys.executable, "-m", "vlmkit", "bench", url, *args]
        subprocess.run(command, check=True, timeout=120)
    finally:
        serving.terminate()
        serving.communicate()
    summary = json.loads(file.read_text())["summary"]
    assert summary["num_succeeded"] == 12
    assert summary["errors"] == {}
    assert summary["num_without_usage"] == 0
    assert summary["prompt_tokens"] > 12 * 100
