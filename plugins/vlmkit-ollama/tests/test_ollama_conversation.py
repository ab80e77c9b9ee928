"""What bodies of Ollama's API are read as."""

import json

import msgspec
import pytest
from hypothesis import given, strategies as st

from vlmkit.types.constraint import JsonObject, JsonSchema
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_ollama.answer import INVALID_INPUT_KEY, Content, chat_line
from vlmkit_ollama.api import OllamaApi
from vlmkit_ollama.conversation import chat_conversation, generate_conversation
from vlmkit_ollama.wire import CHAT, GENERATE
from vlmkit_server.interfaces.conversation import ImageSource

OPTIONS = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.1,
    "typical_p": 0.7,
    "repeat_penalty": 1.2,
    "repeat_last_n": 33,
    "presence_penalty": 1.5,
    "frequency_penalty": 1.0,
    "num_predict": 100,
    "seed": 42,
    "stop": ["\n", "user:"],
}


def chat_of(*messages, **fields):
    body, _ = CHAT.read(json.dumps({"messages": messages} | fields).encode())
    return chat_conversation(body, None)


def generate_of(**fields):
    body, _ = GENERATE.read(json.dumps({"prompt": "x"} | fields).encode())
    return generate_conversation(body, None)


def test_every_option_is_the_sampling_parameter_of_its_meaning():
    assert SamplingParams(**generate_of(options=OPTIONS).sampling) == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=20,
        min_p=0.1,
        typical_p=0.7,
        repetition_penalty=1.2,
        repeat_last_n=33,
        presence_penalty=1.5,
        frequency_penalty=1.0,
        max_tokens=100,
        seed=42,
        stop=("\n", "user:"),
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_predict": -1}, {}),
        ({"num_predict": -2}, {}),
        ({"num_predict": 0}, {}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"repeat_penalty": 1.1}, {"repetition_penalty": 1.1, "repeat_last_n": 64}),
        ({}, {}),
    ],
)
def test_options_have_the_defaults_of_ollama_where_they_are_set(options, expected):
    assert generate_of(options=options).sampling == expected


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (None, None),
        ("", None),
        ("json", JsonObject()),
        ({"type": "string"}, JsonSchema.of({"type": "string"}, is_strict=False)),
    ],
)
def test_a_format_is_the_constraint_of_its_schema(form, expected):
    assert generate_of(format=form).constraint == expected


@pytest.mark.parametrize(
    ("think", "template", "effort"),
    [
        (None, {}, None),
        (False, {"enable_thinking": False, "thinking": False}, None),
        (True, {"enable_thinking": True, "thinking": True}, None),
        ("low", {"enable_thinking": True, "thinking": True}, "low"),
    ],
)
def test_think_sets_the_variables_and_the_effort_of_the_template(think, template, effort):
    found = generate_of(think=think)
    assert (found.template_values, found.reasoning_effort) == (template, effort)


def test_images_come_before_the_text_with_paths_that_errors_name():
    message = {"role": "user", "content": "what?", "images": ["AAAA", "data:image/png;base64,BB"]}
    conversation = chat_of({"role": "system", "content": "brief"}, message)
    first, second, text = conversation.messages[1].parts
    assert isinstance(first, ImageSource)
    assert (first.path, first.url) == ("messages[1].images[0]", "data:;base64,AAAA")
    assert second.url == "data:image/png;base64,BB"
    assert text.text == "what?"


def call(name, **fields):
    return {"function": {"name": name, "arguments": {}}} | fields


def called(*calls):
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def result(**fields):
    return {"role": "tool", "content": "x"} | fields


def test_a_result_answers_the_call_that_its_id_or_its_tools_name_says():
    question = {"role": "user", "content": "x"}
    calls = called(call("look"), call("hear", id="a"), call("look"))
    results = [
        result(tool_name="look"),
        result(tool_call_id="a"),
        result(tool_name="look"),
    ]
    sent = chat_of(question, calls, *results).messages
    ids = [part.call.id for part in sent[1].parts if hasattr(part, "call")]
    assert [message.call_id for message in sent[2:]] == ids == ["call_1", "a", "call_3"]


@given(st.permutations(["a", "b", "c", "d"]), st.booleans())
def test_results_in_any_order_answer_each_call_once(order, has_names):
    calls = called(*map(call, "abcd"))
    results = [result(tool_name=name) if has_names else result() for name in order]
    sent = chat_of({"role": "user", "content": "x"}, calls, *results).messages
    found = [message.call_id for message in sent[2:]]
    ids = {name: f"call_{number}" for number, name in enumerate("abcd", 1)}
    assert found == [ids[name] for name in (order if has_names else "abcd")]


def test_results_without_a_call_have_no_id():
    assert chat_of(result(tool_name="look")).messages[0].call_id is None


@pytest.mark.parametrize("arguments", ["no json", "[1]", '"x"'])
def test_arguments_that_are_no_object_are_wrapped_in_one(arguments):
    line = chat_line(Content(calls=[ToolCallPart("1", "look", arguments)]), model="m", done=False)
    (sent,) = json.loads(msgspec.json.encode(line))["message"]["tool_calls"]
    assert sent["function"]["arguments"] == {INVALID_INPUT_KEY: arguments}


def test_keys_for_chats_open_no_vectors_and_keys_without_scopes_list_models():
    scopes = {route.path: route.scope for route in OllamaApi().routes(None)}
    assert scopes == {
        "/api/chat": "chat",
        "/api/generate": "chat",
        "/api/embed": "embed",
        "/api/embeddings": "embed",
        "/api/show": "key",
        "/api/tags": "key",
        "/api/ps": "key",
        "/api/version": "key",
    }
