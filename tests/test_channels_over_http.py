"""A random model with harmony channels over HTTP: a server process, the real compiler.

Its answers obey their constraints, and reasoning, text and tool calls are separated.
"""

import json
import re
import subprocess
import sys
import time

import openai
import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")

from transformers import PreTrainedTokenizerFast

import zoo

pytestmark = [pytest.mark.posix, pytest.mark.torch, pytest.mark.slow]

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": SCHEMA}}
    for name in ("weather", "clock")
]
FORM = {"type": "json_schema", "json_schema": {"name": "days", "schema": SCHEMA, "strict": True}}
QUESTION = {"role": "user", "content": "How is the weather?"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A client, and biases by which thoughts end."""
    folder = zoo.save("gpt_oss", tmp_path_factory.mktemp("gpt_oss"))
    tokens = PreTrainedTokenizerFast.from_pretrained(folder)
    ends = tokens.convert_tokens_to_ids(["<|end|>", "<|return|>", "<|call|>"])
    log = folder / "log"
    command = [sys.executable, "-m", "vlmkit", "serve", str(folder), "--port", "0"]
    command += ["--set", "engine.use=torch"]
    with log.open("wb") as said, subprocess.Popen(command, stderr=said) as process:
        try:
            deadline = time.monotonic() + 600
            while "is ready\n" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            url = re.search(r"listening on (\S+)", log.read_text())[1]
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                yield client, {str(token_id): 12.0 for token_id in ends}
        finally:
            process.kill()


def answer(served, *, stream, messages=(QUESTION,), **fields):
    client, biases = served
    body = {
        "model": client.models.list().data[0].id,
        "messages": list(messages),
        "temperature": 1.0,
        "max_tokens": 600,
        "logit_bias": biases,
        **fields,
    }
    if not stream:
        return client.chat.completions.create(**body).choices[0]
    with client.chat.completions.stream(**body) as events:
        return events.get_final_completion().choices[0]


def check(arguments):
    assert set(arguments) == {"city", "days"}
    assert len(arguments["city"]) <= 6
    assert arguments["days"] in (1, 2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "clock"}}]
)
def test_a_required_tool_call_in_channels_matches_its_schema(served, stream, choice):
    for seed in range(3):
        completion = answer(served, stream=stream, tools=TOOLS, tool_choice=choice, seed=seed)
        assert completion.finish_reason == "tool_calls"
        assert not completion.message.content
        (call,) = completion.message.tool_calls
        assert call.function.name in (("weather", "clock") if choice == "required" else ("clock",))
        check(json.loads(call.function.arguments))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_an_answer_in_channels_calls_a_tool_or_has_text_as_allowed(served, stream, choice):
    for seed in range(6):
        completion = answer(served, stream=stream, tools=TOOLS, tool_choice=choice, seed=seed)
        calls = completion.message.tool_calls or []
        assert completion.finish_reason == ("tool_calls" if calls else "stop")
        assert len(calls) <= (choice == "auto")
        for call in calls:
            check(json.loads(call.function.arguments))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_the_final_channel_is_json_and_reasoning_is_unconstrained(served, stream, tools):
    fields = {"tools": tools, "tool_choice": "none"} if tools else {}
    for seed in range(4):
        completion = answer(served, stream=stream, response_format=FORM, seed=seed, **fields)
        assert completion.finish_reason == "stop"
        check(json.loads(completion.message.content))


def test_a_tool_call_and_its_result_are_sent_back(served):
    completion = answer(served, stream=False, tools=TOOLS, tool_choice="required", seed=1)
    (call,) = completion.message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"sun": true}'}
    messages = [QUESTION, completion.message, result]
    again = answer(served, stream=False, messages=messages, response_format=FORM, seed=1)
    check(json.loads(again.message.content))
    efforts = [
        answer(served, stream=False, messages=messages, reasoning_effort=effort, seed=1)
        for effort in ("low", "high")
    ]
    assert {completion.finish_reason for completion in efforts} <= {"stop", "length", "tool_calls"}
