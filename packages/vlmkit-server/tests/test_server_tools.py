"""Server-side tools: requested by name, run between rounds, and safe for the server."""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from running_server import Running, chat, eventually, mock_pipeline, running
from serving_tools import Tools, calls

from vlmkit.errors import ConfigError
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit_mock.settings import Reply, ScriptedCall
from vlmkit_server.tools.toolbox import Toolbox
from vlmkit_testing import ToolSourceContract


class TestTools(ToolSourceContract):
    def make(self) -> Tools:
        tools = Tools()
        tools.names = frozenset({"say", "show", "fail"})  # type: ignore[misc]
        return tools

    def arguments(self) -> dict[str, dict[str, Any]]:
        return {"say": {"text": "hello"}}


@pytest.fixture(scope="module")
def tools() -> Tools:
    return Tools()


@pytest.fixture(scope="module")
def served(tools: Tools) -> Iterator[Running]:
    again = Reply(to="again", calls=(ScriptedCall(name="say", arguments={"text": "again"}),))
    pipeline = mock_pipeline(settings=PipelineSettings(max_images=3), replies=(again,))
    with running({"mock": pipeline}, Toolbox({"own": tools}), max_tool_rounds=3) as served:
        yield served
    assert tools.num_closed == 1


@pytest.fixture(autouse=True)
def nothing_called(tools: Tools) -> None:
    tools.called.clear()


def ask(served: Running, text: str, *names: str, **fields: Any) -> Any:
    return served.post(chat(text, server_tools=list(names), **fields)).json()


def answer_text(answer: Any) -> str:
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]
    return choice["message"]["content"]


def test_a_tool_result_is_used_in_the_answer_and_its_call_is_hidden(
    served: Running, tools: Tools
) -> None:
    answer = ask(served, calls(("say", {"text": "red"}), text="I look.", reasoning="hm"), "say")
    assert answer_text(answer).startswith("I look.\n\n")
    assert answer_text(answer).endswith("red")
    assert answer["choices"][0]["message"]["reasoning_content"] == "hm"
    assert tools.called == [("say", {"text": "red"})]


def test_an_image_of_a_tool_result_is_in_the_prompt(served: Running) -> None:
    answer = ask(served, calls(("show", {})), "show")
    assert "image 1: 8x6 sha256:" in answer_text(answer)
    assert answer["usage"]["prompt_tokens_details"]["image_tokens_each"] == [4]


def test_images_over_the_limit_are_left_out_of_the_prompt(served: Running) -> None:
    text = answer_text(ask(served, calls(("show", {"num": 5})), "show"))
    assert "image 3: " in text
    assert "image 4: " not in text
    assert text.count("[left out: there is no room for it]") == 2


def test_several_calls_of_a_round_are_answered_in_order(served: Running, tools: Tools) -> None:
    two = ("say", {"text": "first"}), ("say", {"text": "second"})
    assert answer_text(ask(served, calls(*two), "say", "show")).endswith("second")
    assert sorted(each[1]["text"] for each in tools.called) == ["first", "second"]


def test_the_number_of_rounds_is_limited(served: Running, tools: Tools) -> None:
    ask(served, "again", "say")  # the tool's result makes the mock call it again
    assert tools.called == [("say", {"text": "again"})] * 3


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        (("fail", {}), "error: it is broken"),
        (("crash", {}), "error: the tool failed"),
        (("wait", {}), "error: there is no such tool"),
        (("nonsense", {}), "error: there is no such tool"),
    ],
)
def test_a_failed_tool_is_reported_to_the_model(
    served: Running, called: tuple[str, dict[str, Any]], expected: str
) -> None:
    assert answer_text(ask(served, calls(called), "fail", "crash")).endswith(expected)


def test_the_log_names_requests_and_tools_and_never_arguments_or_results(
    served: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vlmkit_server.tools")
    called = [(name, {"text": "private"}) for name in ("say", "fail", "crash", "no")]
    answer = ask(served, calls(*called), "say", "fail", "crash")
    lines = [record.getMessage() for record in caplog.records if "request" in record.msg]
    assert len(lines) == 4
    assert all(line.startswith(f"request {answer['id']}: ") for line in lines)
    ends = sorted(re.sub(r"[\d.]+ s", "0 s", line.split(": ", 1)[1]) for line in lines)
    assert ends == [
        "the model called a tool that the request does not list",
        "tool 'crash', 0 s, error: ZeroDivisionError",
        "tool 'fail', 0 s, error: EngineError",
        "tool 'say', 0 s, ok",
    ]
    assert "private" not in caplog.text
    assert "secret" not in caplog.text
    assert "broken" not in caplog.text
    failed = next(each.getMessage() for each in caplog.records if each.levelname == "ERROR")
    assert failed.startswith("tool 'crash' of tool source 'own' failed:")
    assert "line" in failed


def test_streams_equal_whole_answers_and_are_well_formed(served: Running) -> None:
    text = calls(("say", {"text": "red"}), text="I look.", reasoning="hm")
    whole = ask(served, text, "say")
    stream = served.client().chat.completions.create(
        model="mock",
        messages=[{"role": "user", "content": text}],
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"server_tools": ["say"]},
    )
    chunks = list(stream)
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(piece.delta.content or "" for piece in pieces) == answer_text(whole)
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop"]
    assert not any(piece.delta.tool_calls for piece in pieces)
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == whole["usage"]["completion_tokens"]
    assert usage.prompt_tokens == whole["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_limits_all_rounds_together(served: Running, stream: bool) -> None:
    text = calls(("say", {"text": "a" * 300}))
    call = ask(served, text, "say", max_tokens=1000)["usage"]["completion_tokens"] - 300
    body = chat(text, server_tools=["say"], max_tokens=call + 5, stream=stream)
    answer = served.post(body)
    if stream:
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if "{" in line]
        reasons = [c["finish_reason"] for event in events for c in event["choices"]]
        assert [reason for reason in reasons if reason] == ["length"]
    else:
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert answer.json()["usage"]["completion_tokens"] <= call + 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"server_tools": ["nope"]}, "server_tools"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"return_image_transforms": True}, "return_image_transforms"),
        ({"tool_choice": "none"}, "tool_choice"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"tools": [{"type": "function", "function": {"name": "own"}}]}, "tools"),
    ],
)
def test_incompatible_fields_are_refused_by_name(
    served: Running, fields: dict[str, Any], param: str
) -> None:
    answer = served.post(chat("hello", **({"server_tools": ["say"]} | fields)))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_an_unavailable_tool_is_reported_without_the_cause(served: Running) -> None:
    answer = served.post(chat("hello", server_tools=["absent"]))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "tool_failed"
    assert "secret" not in answer.text


def test_a_request_without_server_tools_runs_none(served: Running, tools: Tools) -> None:
    answer = served.post(chat(calls(("say", {})))).json()
    assert not tools.called
    assert answer["choices"][0]["finish_reason"] != "tool_calls"


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions/render", "/v1/messages/render", "/tokenize"]
)
def test_other_apis_refuse_server_tools_by_name(served: Running, path: str) -> None:
    body = chat("hello", server_tools=["say"], max_tokens=5)
    if path == "/v1/completions":
        body = {"model": "mock", "prompt": "hello", "server_tools": ["say"], "max_tokens": 5}
    if path == "/tokenize":
        del body["max_tokens"]
    answer = served.post(body, path)
    assert answer.status_code == 400
    assert "server_tools" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_cancels_the_tool_call(served: Running, tools: Tools, stream: bool) -> None:
    tools.is_waiting.clear()
    tools.is_cancelled.clear()
    body = chat(calls(("wait", {})), server_tools=["wait"], stream=stream)
    with served.connect(body):
        assert tools.is_waiting.wait(300)
    assert tools.is_cancelled.wait(300)
    assert eventually(served.is_idle)


def test_capabilities_list_the_server_tools(served: Running, tools: Tools) -> None:
    assert served.get("/v1/capabilities").json()["server_tools"] == sorted(tools.names)


def test_two_tools_with_one_name_prevent_the_start() -> None:
    with pytest.raises(ConfigError, match="has the name of another's"):
        Toolbox({"one": Tools(), "two": Tools()})


def test_a_server_without_tools_refuses_server_tools(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="server_tools"):
        server.client().chat.completions.create(
            model="mock",
            messages=[{"role": "user", "content": "hi"}],
            extra_body={"server_tools": ["say"]},
        )
