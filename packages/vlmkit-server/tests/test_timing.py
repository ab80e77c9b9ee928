"""Server timings of answers: each stage, and for each image its own stages."""

import json
import re

import httpx2
import pytest
from running_server import chat, image_part, image_url, mock_pipeline, running

from vlmkit.settings.pipeline import PipelineSettings

WHOLE = ["images", "prompt", "queue", "first_token", "decode"]
STAGES = ["fetch", "decode", "preprocess", "encode"]
WITH_TIMINGS = {"x-vlmkit-timing": "1"}


@pytest.fixture(scope="module")
def server():
    with running() as server:
        yield server


def spans(header):
    found = dict(re.findall(r"([\w]+);dur=([\d.]+)", header))
    assert ", ".join(f"{name};dur={ms}" for name, ms in found.items()) == header
    return {name: float(ms) for name, ms in found.items()}


def image_chat(*sizes, **fields):
    parts = [image_part(image_url(*size)) for size in sizes]
    said = [{"type": "text", "text": "hello"}, *parts]
    return chat(messages=[{"role": "user", "content": said}], **fields)


def comment(text):
    (found,) = re.findall(r"^: server-timing: (.*)$", text, re.MULTILINE)
    return spans(found)


def test_each_image_has_its_own_stages_and_the_totals_are_their_sums(server):
    found = spans(server.post(image_chat((31, 9), (9, 31))).headers["server-timing"])
    each = [f"image{number}_{stage}" for number in (0, 1) for stage in STAGES]
    assert list(found) == [*WHOLE, *(f"image_{stage}" for stage in STAGES), *each]
    for stage in STAGES:
        own = found[f"image0_{stage}"] + found[f"image1_{stage}"]
        assert found[f"image_{stage}"] == pytest.approx(own, abs=0.21)  # rounding errors


def test_an_image_from_the_caches_has_neither_a_decode_nor_an_encode_stage(server):
    body = image_chat((12, 21))
    first, again = (spans(server.post(body).headers["server-timing"]) for _ in range(2))
    assert "image0_encode" in first
    assert "image0_encode" not in again
    assert "image0_decode" in first
    assert "image0_decode" not in again


def test_timings_of_a_text_prompt_have_no_image_stages(server):
    assert list(spans(server.post(chat()).headers["server-timing"])) == WHOLE


def test_only_the_first_images_have_their_own_stages():
    pipeline = mock_pipeline(settings=PipelineSettings(max_images=24))
    with running({"mock": pipeline}) as server:
        header = server.post(image_chat(*((8, n) for n in range(8, 30)))).headers["server-timing"]
    numbers = {int(n) for n in re.findall(r"image(\d+)_", header)}
    assert numbers == set(range(16))
    assert len(header) < 4096


def test_a_stream_starts_with_known_timings_and_ends_with_all_on_request(server):
    answer = server.post(image_chat((17, 8), stream=True), headers=WITH_TIMINGS)
    known = list(spans(answer.headers["server-timing"]))
    assert known[:2] == ["images", "prompt"]
    assert {"image0_fetch", "image0_decode", "image0_preprocess"} <= set(known)
    assert not {"queue", "decode"} & set(known)
    assert {*WHOLE, "image0_encode"} <= set(comment(answer.text))
    assert answer.text.index(": server-timing") < answer.text.index("data: [DONE]")


def test_streams_have_no_timing_comment_unless_requested(server):
    answer = server.post(chat(stream=True))
    assert "server-timing" in answer.headers
    assert all(line.startswith("data: ") for line in answer.text.splitlines() if line)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "mock", "prompt": ["a", "b"], "max_tokens": 2}),
        ("/v1/messages", chat(max_tokens=4)),
        ("/v1/responses", {"model": "mock", "input": "hello", "store": False}),
    ],
)
def test_every_api_streams_timings_on_request(path, body, server):
    answer = server.post(body | {"stream": True}, path, headers=WITH_TIMINGS)
    assert answer.status_code == 200, answer.text
    assert set(WHOLE) <= set(comment(answer.text))


def test_openais_client_reads_a_stream_with_timings(server):
    client = server.client().with_options(default_headers=WITH_TIMINGS)
    sent = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}
    chunks = list(client.chat.completions.create(**sent, stream=True))
    whole = client.chat.completions.create(**sent)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content


def test_timings_are_not_negative_and_fit_within_the_response_time(server):
    with httpx2.Client(trust_env=False, timeout=300) as http:
        answer = http.post(f"{server.url}/v1/chat/completions", json=image_chat((64, 64)))
    found = spans(answer.headers["server-timing"])
    assert json.loads(answer.text)["choices"]
    assert min(found.values()) >= 0.0
    took_ms = answer.elapsed.total_seconds() * 1e3
    assert found["prompt"] + found["queue"] + found["first_token"] + found["decode"] <= took_ms + 1
