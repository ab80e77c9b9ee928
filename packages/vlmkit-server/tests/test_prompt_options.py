"""Prompt options of clients: continuation, template variables and reasoning effort."""

import pytest
from running_server import chat, running, scripted

from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer


def ask(server, messages, **fields):
    return server.client().chat.completions.create(
        model="mock", messages=messages, extra_body={"return_token_ids": True, **fields}
    )


def turns(*said):
    return [
        {"role": role, "content": text}
        for role, text in zip(("user", "assistant") * 2, said, strict=False)
    ]


@pytest.mark.parametrize("way", ["field", "prefix", "partial"])
def test_an_answer_continues_the_last_message(server, way):
    messages = turns(scripted(text="ab"), "It is ")
    ends = ask(server, messages).prompt_token_ids
    fields = {"continue_final_message": True} if way == "field" else {}
    if way != "field":
        messages[-1][way] = True
    answer = ask(server, messages, **fields)
    assert bytes(answer.prompt_token_ids[-6:]) == b"It is "
    assert ends[: len(answer.prompt_token_ids)] == answer.prompt_token_ids
    assert answer.choices[0].message.content == "ab"


def test_a_prompt_can_end_without_a_generation_prompt(server):
    messages = turns(scripted(text="ab"))
    token_ids = ask(server, messages).prompt_token_ids
    assert ask(server, messages, add_generation_prompt=False).prompt_token_ids == token_ids[:-1]
    assert ask(server, messages, add_generation_prompt=True).prompt_token_ids == token_ids


def test_a_continued_message_has_text_and_no_reasoning(server):
    messages = turns(scripted(text="so", reasoning="why"), "It is ")
    message = ask(server, messages, continue_final_message=True).choices[0].message
    assert message.content == "whyso"
    assert not hasattr(message, "reasoning_content")


def test_chat_template_variables_can_be_set(server):
    text = scripted(text="so")
    for value, thought in ((True, "so"), (False, "")):
        message = (
            ask(server, turns(text), chat_template_kwargs={"enable_thinking": value})
            .choices[0]
            .message
        )
        assert getattr(message, "reasoning_content", "") == thought
        assert message.content == ("" if thought else "so")


@pytest.mark.parametrize(
    ("effort", "thinks"),
    [("none", False), *((each, True) for each in ("minimal", "low", "medium", "high", "xhigh"))],
)
def test_reasoning_effort_is_passed_to_the_chat_template(server, effort, thinks):
    answer = ask(server, turns(scripted(text="so")), reasoning_effort=effort)
    assert getattr(answer.choices[0].message, "reasoning_content", "") == ("so" if thinks else "")
    counted = server.post({"messages": turns("so"), "reasoning_effort": effort}, "/tokenize").json()
    plain = server.post({"messages": turns("so")}, "/tokenize").json()
    assert counted["count"] - plain["count"] == thinks


class Effortless(MockTokenizer):
    honours = frozenset({"chat_template_kwargs"})


EFFORTS = [
    ("/v1/chat/completions", {"reasoning_effort": "low"}, "reasoning_effort"),
    ("/tokenize", {"reasoning_effort": "low"}, "reasoning_effort"),
    ("/v1/messages", {"output_config": {"effort": "max"}}, "output_config.effort"),
    ("/v1/messages/count_tokens", {"output_config": {"effort": "low"}}, "output_config.effort"),
]


def test_reasoning_effort_is_reported_as_ignored_by_models_without_it():
    pipeline = Pipeline(tokenizer=Effortless(), engine=MockEngine(MockEngineSettings()), name="m")
    with running({"mock": pipeline}) as server:
        for path, fields, name in EFFORTS:
            bound = {"max_tokens": 4} if path == "/v1/messages" else {}
            sent = chat() | bound | fields | {"flavour": 1}
            answer = server.post(sent, path)
            assert answer.status_code == 200, answer.text
            ignored = answer.headers["x-vlmkit-ignored"].split(", ")
            assert {name, "flavour"} <= set(ignored)
            assert server.get("/readyz").json()["num_ignored"][name] >= 1
            strict = {key: value for key, value in sent.items() if key != "flavour"}
            refused = server.post(strict, path, headers={"x-vlmkit-strict": "1"})
            assert refused.status_code == 400
            assert name in refused.text
        (model,) = server.get("/v1/capabilities").json()["models"]
        taken = model["endpoints"]["/v1/chat/completions"]
        assert "reasoning_effort" not in taken["parameters"] + taken["refused"]


def test_effort_of_anthropics_api_has_the_same_effect(server):
    sent = chat(scripted(text="so"), max_tokens=32)
    for effort, kind in (({"effort": "low"}, "thinking"), ({}, "text")):
        answer = server.post(sent | {"output_config": effort}, "/v1/messages")
        assert answer.json()["content"][0]["type"] == kind
    quiet = sent | {"output_config": {"effort": "low"}, "thinking": {"type": "disabled"}}
    assert server.post(quiet, "/v1/messages").json()["content"][0]["type"] == "text"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template_kwargs": {"enable_thinking": "yes"}},
         "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"s3cret": True}}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": [{"role": "assistant", "content": "a", "prefix": True},
                       {"role": "user", "content": "b"}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "content": " ", "prefix": True}]},
         "continue_final_message"),
    ],
)  # fmt: skip
def test_invalid_or_forbidden_prompt_options_are_refused_by_name(server, fields, param):
    refused = server.post(chat() | fields)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert "s3cret" not in refused.text


def test_the_operator_limits_the_chat_template_variables():
    allowed = ("effort:low|high", "budget:int")
    with running(chat_template_kwargs=allowed) as server:
        for good in ({"effort": "low"}, {"budget": 7}, {"effort": None}):
            assert server.post(chat(chat_template_kwargs=good)).status_code == 200
        for bad in ({"effort": "<|end|>"}, {"effort": ["low"]}, {"budget": True},
                    {"budget": 2**40}, {"enable_thinking": True}):  # fmt: skip
            assert server.post(chat(chat_template_kwargs=bad)).status_code == 400
