"""Each field within an object is sent once, in each API."""

import json

import pytest
from bodies import READERS
from running_server import image_part, image_url, recorded_requests
from test_known_fields import ANSWERING, HEADER, OTHER, outcome_of

from vlmkit_server.operate.field_actions import actions
from vlmkit_server.wire.table import TABLE

CHAT, COMPLETIONS, MESSAGES, RESPONSES = ANSWERING[0], ANSWERING[1], ANSWERING[2], ANSWERING[3]
DATA = image_url().partition(",")[2]
SOURCE = {"type": "base64", "media_type": "image/png", "data": DATA}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
FULL = {
    CHAT: {
        "model": "mock",
        "max_tokens": 4,
        "messages": [
            {"role": "user", "content": [image_part(image_url()), {"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "c"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "look"}}],
    },
    COMPLETIONS: {"model": "mock", "prompt": "a", "max_tokens": 4},
    MESSAGES: {
        "model": "mock",
        "max_tokens": 2000,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": SOURCE}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "redacted_thinking", "data": None},
                    {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": [{"type": "text", "text": "c"}],
                    }
                ],
            },
        ],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "thinking": {"type": "enabled"},
    },
    RESPONSES: {
        "model": "mock",
        "max_output_tokens": 4,
        "store": False,
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": image_url()}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"role": "user", "content": "c"},
        ],
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
    },
}
"""For each API, a body with all inner objects that have fields of the table."""

KINDS = {
    "messages.audio": "assistant",
    "messages.function_call": "assistant",
    "messages.refusal": "assistant",
    "messages.reasoning": "assistant",
    "messages.annotations": "assistant",
    "messages.thinking_blocks": "assistant",
    "messages.content.is_error": "tool_result",
    "messages.content.data": "redacted_thinking",
    "input.content.annotations": "output_text",
    "input.content.logprobs": "output_text",
}
"""The role or type of the object that has a field, where only one has it."""

OF_ANY_KIND = {(CHAT, "messages.content.is_error"), (CHAT, "messages.content.data")}
"""Fields of objects that this API does not have."""

VALUES = {
    "messages.content.image_url.detail": "low",
    "input.content.detail": "low",
    "messages.partial": True,
    "messages.prefix": True,
    "messages.reasoning": "hm",
    "messages.images": [DATA],
    "output_config.effort": "low",
    "thinking.budget_tokens": 1024,
}
LAST = {"messages.partial", "messages.prefix"}  # only the last message may have these
AT_TOP = ("structured_outputs", "stream_options", "reasoning", "text", "output_config")
STREAMED = "stream_options.continuous_usage_stats"
DETAILS = ("messages.content.image_url.detail", "input.content.detail")  # the mock has sizes


def objects(held, steps):
    """Yield the objects at a location; a missing top-level object is created."""
    if isinstance(held, list):
        for each in held:
            yield from objects(each, steps)
    elif isinstance(held, dict) and not steps:
        yield held
    elif isinstance(held, dict):
        if steps[0] in AT_TOP:
            held.setdefault(steps[0], {})
        yield from objects(held.get(steps[0]), steps[1:])


def bodies(path, field, value):
    """Return a body without a field, and one with it."""
    body = json.loads(json.dumps(FULL[path]))
    if field in LAST:
        body["messages"] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        body.pop("tools")
    *parents, name = field.split(".")
    kind = "assistant" if field in LAST else KINDS.get(field)
    found = list(objects(body, parents))
    if (path, field) in OF_ANY_KIND:
        kind = None
    holder = next(each for each in found if kind in (None, each.get("role"), each.get("type")))
    without = json.loads(json.dumps(body))
    holder[name] = value
    return without, body


def inner(action):
    return [
        pytest.param(path, field, id=f"{path} {field}")
        for path in ANSWERING
        for field, each in sorted(actions(READERS[path]).items())
        if "." in field and each == action and field not in (STREAMED, *DETAILS)
    ]


def test_every_inner_field_is_tested():
    tried = {field for path in ANSWERING for field in actions(READERS[path]) if "." in field}
    assert tried == {field for field in TABLE if "." in field}


@pytest.mark.parametrize("path", ANSWERING)
def test_a_body_with_all_inner_objects_is_answered(server, path):
    answer = server.post(FULL[path], path)
    assert answer.status_code == 200, answer.text
    assert HEADER not in answer.headers


@pytest.mark.parametrize(("path", "field"), inner("rejected"))
def test_an_unsupported_inner_field_is_refused_by_name(server, path, field):
    without, body = bodies(path, field, OTHER)
    assert server.post(without, path).status_code == 200
    answer = server.post(body, path)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert field.rpartition(".")[2] in error["message"].partition(" is not supported")[0]
    assert "got a number, accepted: null" in error["message"]


@pytest.mark.parametrize(("path", "field"), inner("no effect"))
def test_an_inner_field_without_effect_is_reported_unless_it_is_neutral(
    server, monkeypatch, path, field
):
    without, body = bodies(path, field, VALUES.get(field, OTHER))
    with recorded_requests(server, monkeypatch) as requests:
        plain = outcome_of(server, requests, without, path)
        idle = outcome_of(server, requests, body, path)
        assert plain[:2] == (200, None), plain[3]
        assert idle[:2] == (200, field), idle[3]
        assert idle[2] == plain[2]
        for neutral in (None, *TABLE[field].neutral):
            found = outcome_of(server, requests, bodies(path, field, neutral)[1], path)
            assert found[:3] == plain[:3]


@pytest.mark.parametrize(("path", "field"), [*zip((CHAT, RESPONSES), DETAILS, strict=True)])
def test_detail_has_an_effect_where_the_model_has_several_sizes(server, monkeypatch, path, field):
    without, body = bodies(path, field, VALUES[field])
    with recorded_requests(server, monkeypatch) as requests:
        plain = outcome_of(server, requests, without, path)
        changed = outcome_of(server, requests, body, path)
    assert changed[:2] == plain[:2] == (200, None)
    assert changed[2] != plain[2]


@pytest.mark.parametrize(("path", "field"), inner("implemented"))
def test_a_supported_inner_field_has_an_effect(server, monkeypatch, path, field):
    without, body = bodies(path, field, VALUES[field])
    with recorded_requests(server, monkeypatch) as requests:
        plain = outcome_of(server, requests, without, path)
        assert plain[0] == 200
        changed = outcome_of(server, requests, body, path)
    assert changed[0] == 200, changed[3]
    assert changed[1:3] != plain[1:3]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_is_in_each_event_on_request(server, path):
    options = {"include_usage": True}
    body = FULL[path] | {"stream": True, "stream_options": options}
    plain = server.post(body, path).text.count('"total_tokens"')
    options = options | {"continuous_usage_stats": True}
    num_continuous = server.post(body | {"stream_options": options}, path).text.count(
        '"total_tokens"'
    )
    assert num_continuous > plain
