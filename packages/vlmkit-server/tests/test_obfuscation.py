"""Obfuscated streams: event sizes reveal nothing about the text, and the text is the same."""

import json

import pytest
from running_server import chat, scripted

from vlmkit_server.exchange.obfuscation import NUM_BYTES

HIDING = {"stream_options": {"include_obfuscation": True}}
SAID = scripted(text="né 🙂 and more", reasoning="hm")
BODIES = {
    "/v1/chat/completions": chat(SAID),
    "/v1/completions": {"model": "mock", "prompt": "some words", "max_tokens": 12},
    "/v1/responses": {"model": "mock", "input": SAID},
}


def events(server, path, **options):
    """Return the JSON of each event, and its size."""
    text = server.post(BODIES[path] | {"stream": True} | options, path).text
    found = [event for event in text.split("\n\n") if "{" in event]
    return [(json.loads(each.rpartition("data: ")[2]), len(each.encode()) + 2) for each in found]


def stable_fields(event):
    """Return an event without the fields that differ between answers."""
    return {key: value for key, value in event.items() if key in ("choices", "delta", "type")}


@pytest.mark.parametrize("path", BODIES)
def test_obfuscated_events_have_one_size_and_the_same_content(server, path):
    plain, hidden = events(server, path), events(server, path, **HIDING)
    assert [stable_fields(event) for event, _ in hidden] == [
        stable_fields(event) for event, _ in plain
    ]
    assert not any("obfuscation" in event for event, _ in plain)
    filled = [(event, size) for event, size in hidden if "obfuscation" in event]
    assert len(filled) > 5
    assert all(event.get("object") or event["type"].endswith(".delta") for event, _ in filled)
    assert {size % NUM_BYTES for _, size in filled} == {0} != {s % NUM_BYTES for _, s in plain}
    text = {size for event, size in filled if event.get("type", "").endswith("output_text.delta")}
    assert len(text) <= 1
    assert len({event["obfuscation"] for event, _ in filled if event["obfuscation"]}) > 5


def test_the_official_client_reads_obfuscated_streams(server):
    client = server.client()
    with client.responses.stream(model="mock", input=SAID, extra_body=HIDING) as stream:
        assert stream.get_final_response().output_text == "né 🙂 and more"
    messages = [{"role": "user", "content": SAID}]
    chunks = client.chat.completions.create(model="mock", messages=messages, stream=True, **HIDING)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "né 🙂 and more"
