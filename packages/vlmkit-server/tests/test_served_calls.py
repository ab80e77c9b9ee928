"""Server-side tools in the other APIs: calls and results have the types of their clients."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from anthropic_client import body as message, client_of, events as message_events
from pydantic import TypeAdapter
from responses_client import body, checked, events, refused, whole
from running_server import (
    Running,
    eventually,
    message_content,
    mock_pipeline,
    recorded_requests,
    running,
)
from serving_tools import Tools, calls

from vlmkit_mock.settings import Reply, ScriptedCall
from vlmkit_server.tools.toolbox import Toolbox

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
_EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
RED = ("say", {"text": "red"})
BROKEN = ("fail", {})


@pytest.fixture(scope="module")
def tools() -> Tools:
    return Tools()


@pytest.fixture(scope="module")
def served(tools: Tools) -> Iterator[Running]:
    again = Reply(to="again", calls=(ScriptedCall(name="say", arguments={"text": "again"}),))
    pipeline = mock_pipeline(replies=(again,))
    with running({"mock": pipeline}, Toolbox({"own": tools}), max_tool_rounds=3) as served:
        yield served


def contents(items: Any) -> list[Any]:
    """Return name, arguments, output and state of calls, and type and text of other items."""
    found = []
    for item in items:
        if item.type == "mcp_call":
            called = item.name, json.loads(item.arguments)
            found.append((*called, item.output, item.status, item.error is not None))
        else:
            found.append((item.type, item.content[0].text))
    return found


TWO = calls(RED, BROKEN, text="I look.", reasoning="hm")
CONTENTS_OF_TWO = [
    ("reasoning", "hm"),
    ("message", "I look."),
    ("say", {"text": "red"}, "red", "completed", False),
    ("fail", {}, "error: it is broken", "failed", True),
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_lists_calls_and_results_in_order(served: Running, stream: bool) -> None:
    fields = {"server_tools": ["say", "fail"]}
    if stream:
        *_, last = events(served, TWO, **fields)
        assert last.type == "response.completed"
        answer = last.response
    else:
        answer = whole(served, TWO, **fields)
    assert contents(answer.output)[:4] == CONTENTS_OF_TWO
    assert contents(answer.output)[4][0] == "message"
    assert {item.server_label for item in answer.output[2:4]} == {"server_tools"}
    assert all(item.id.startswith("mcp_") for item in answer.output[2:4])
    assert answer.output[-1].status == "completed"


def test_a_stream_has_the_events_of_each_call_from_start_to_result(served: Running) -> None:
    found = events(served, calls(RED, BROKEN), server_tools=["say", "fail"])
    kinds = [event.type.removeprefix("response.") for event in found]
    kept = [kind for kind in kinds if "delta" not in kind]
    begin = ["output_item.added", "mcp_call.in_progress", "mcp_call_arguments.done"]
    assert kept[2:12] == [*begin, *begin, "mcp_call.completed", "output_item.done",
                          "mcp_call.failed", "output_item.done"]  # fmt: skip
    assert kept[12:] == ["output_item.added", "content_part.added", "output_text.done",
                         "content_part.done", "output_item.done", "completed"]  # fmt: skip
    done = [event for event in found if event.type == "response.output_item.done"]
    assert [event.output_index for event in done] == [0, 1, 2]
    assert [event.item for event in done] == found[-1].response.output
    deltas = [e.delta for e in found if e.type == "response.mcp_call_arguments.delta"]
    assert json.loads("".join(deltas).replace("}{", "},{").join("[]")) == [RED[1], {}]


def test_the_official_client_assembles_a_stream_with_tool_calls(served: Running) -> None:
    sent = body(TWO, extra_body={"server_tools": ["say", "fail"]})
    with served.client().responses.stream(**sent) as stream:
        final = stream.get_final_response()
    assert contents(final.output)[:4] == CONTENTS_OF_TWO


def test_the_rounds_and_calls_of_a_response_are_limited(served: Running, tools: Tools) -> None:
    def num_calls(**fields: Any) -> int:
        tools.called.clear()
        answer = whole(served, "again", server_tools=["say"], **fields)
        assert answer.status == "completed"
        return len(tools.called)

    assert num_calls() == 3
    assert num_calls(max_tool_calls=1) == 1
    assert num_calls(max_tool_calls=0) == 0
    tools.called.clear()
    answer = whole(served, calls(RED, RED), server_tools=["say"], max_tool_calls=1)
    assert [item[2:4] for item in contents(answer.output)[:2]] == [
        ("red", "completed"), ("error: too many calls", "failed"),
    ]  # fmt: skip
    assert len(tools.called) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_calls_cut_off_by_max_output_tokens_are_incomplete(served: Running, stream: bool) -> None:
    fields = {"server_tools": ["say"], "max_output_tokens": 30}
    prompt = calls(("say", {"text": "a" * 60}))
    answer = (
        events(served, prompt, **fields)[-1].response if stream else whole(served, prompt, **fields)
    )
    (item,) = answer.output
    assert (item.type, item.status, item.output) == ("mcp_call", "incomplete", None)
    assert answer.status == "incomplete"


@pytest.mark.parametrize("way", ["stored", "sent", "messages"])
def test_calls_and_results_can_be_sent_back_unchanged(
    served: Running, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client().responses
    question = {"role": "user", "content": TWO}
    with recorded_requests(served, monkeypatch) as requests:
        if way == "messages":
            anthropic = client_of(served).beta.messages
            first = anthropic.create(
                **message(TWO, max_tokens=400), extra_body={"server_tools": ["say", "fail"]}
            )
            turn = {"role": "assistant", "content": first.content}
            follow = [question, turn, {"role": "user", "content": "so?"}]
            raw = anthropic.with_raw_response.create(**message(messages=follow))
        else:
            answer = client.create(**body(TWO), extra_body={"server_tools": ["say", "fail"]})
            follow = body("so?", previous_response_id=answer.id)
            if way == "sent":
                follow = body([question, *answer.output, {"role": "user", "content": "so?"}])
            raw = client.with_raw_response.create(**follow)
    assert "x-vlmkit-ignored" not in raw.headers
    _, second, last = requests
    roles = [turn.role for turn in last.messages]
    results = [each for each in last.messages if each.role == "tool"]
    assert roles[0] == "user"
    assert roles[-2:] == ["assistant", "user"]
    ids = [turn.call_id for turn in second.messages if turn.role == "tool"]
    assert [turn.call_id for turn in results] == ids
    assert [message_content(turn)[2][0].text for turn in results] == ["red", "error: it is broken"]
    if way == "messages":  # whose blocks keep the calls of a round together
        assert roles[:4] == [turn.role for turn in second.messages]


def test_invalid_arguments_are_sent_back_as_empty(served: Running) -> None:
    item = {"type": "mcp_call", "id": "mcp_x_abc", "name": "say", "arguments": '{"te',
            "server_label": "server_tools", "output": "red"}  # fmt: skip
    assert whole(served, [item, {"role": "user", "content": "so?"}]).output_text == "so?"
    error = refused(served, [{"type": "mcp_call", "id": "mcp_x", "name": "say"}])
    assert error["param"] == "input[0]"


def test_a_background_answer_runs_tools_and_cancelling_it_ends_them(
    served: Running, tools: Tools
) -> None:
    client = served.client().responses
    response = client.create(
        **body(calls(RED)), background=True, extra_body={"server_tools": ["say"]}
    )
    assert eventually(lambda: client.retrieve(response.id).status == "completed")
    assert contents(client.retrieve(response.id).output)[0][2] == "red"
    tools.is_waiting.clear()
    tools.is_cancelled.clear()
    waits = {"server_tools": ["wait"]}
    response = client.create(**body(calls(("wait", {}))), background=True, extra_body=waits)
    assert tools.is_waiting.wait(300)
    assert client.cancel(response.id).status == "cancelled"
    assert tools.is_cancelled.wait(300)
    assert eventually(served.is_idle)
    assert client.retrieve(response.id).status == "cancelled"


BLOCKS = ["thinking", "text", "mcp_tool_use", "mcp_tool_use", "mcp_tool_result", "mcp_tool_result",
          "text"]  # fmt: skip


def blocks(answer: Any) -> list[Any]:
    """Return the tool calls and results among the blocks of a message."""
    uses = [(each.name, each.input) for each in answer.content if each.type == "mcp_tool_use"]
    results = [
        (each.content[0].text, each.is_error)
        for each in answer.content
        if each.type == "mcp_tool_result"
    ]
    ids = [getattr(each, "tool_use_id", getattr(each, "id", None)) for each in answer.content]
    assert ids[2:4] == ids[4:6]
    return [uses, results]


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_has_blocks_for_calls_and_results(served: Running, stream: bool) -> None:
    sent = message(TWO, max_tokens=400, extra_body={"server_tools": ["say", "fail"]})
    client = client_of(served).beta.messages
    if stream:
        with client.stream(**sent) as made:
            answer = made.get_final_message()
    else:
        answer = client.create(**sent)
    BetaMessage.model_validate(answer.model_dump())
    assert [block.type for block in answer.content] == BLOCKS
    assert blocks(answer) == [
        [RED, BROKEN], [("red", False), ("error: it is broken", True)],
    ]  # fmt: skip
    assert answer.stop_reason == "end_turn"


def test_events_of_a_message_match_the_clients_types(served: Running) -> None:
    sent = message(TWO, max_tokens=400, server_tools=["say", "fail"])
    received = [data for _, data in message_events(served, sent)]
    for data in received:
        _EVENT.validate_python(data)
    starts = [data["index"] for data in received if data["type"] == "content_block_start"]
    stops = [data["index"] for data in received if data["type"] == "content_block_stop"]
    assert starts == stops == list(range(len(BLOCKS)))


def test_a_client_without_support_for_the_blocks_can_read_the_text(served: Running) -> None:
    client = client_of(served)
    sent = message(TWO, max_tokens=400, extra_body={"server_tools": ["say", "fail"]})
    with client.messages.stream(**sent) as made:
        streamed = "".join(made.text_stream)
    answer = client.messages.create(**sent)
    text = [block.text for block in answer.content if block.type == "text"]
    assert text[0] == "I look."
    assert streamed == "".join(text)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"return_image_transforms": True}, "return_image_transforms"),
        ({"server_tools": ["nope"]}, "server_tools"),
    ],
)
def test_incompatible_fields_are_refused_by_name(
    served: Running, fields: dict[str, Any], param: str
) -> None:
    assert refused(served, **({"server_tools": ["say"]} | fields))["param"] == param


def test_a_continued_message_cannot_use_server_tools(served: Running) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    answer = served.post(message(messages=turns, server_tools=["say"]), MESSAGES)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("messages")


def test_a_server_without_tools_refuses_server_tools(server: Running) -> None:
    assert refused(server, server_tools=["say"])["param"] == "server_tools"
    with pytest.raises(openai.NotFoundError):
        server.client().responses.retrieve("resp_x")
    assert checked(server.post(body("x"), RESPONSES).json()).status == "completed"
