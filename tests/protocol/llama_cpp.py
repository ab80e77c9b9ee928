"""Cases of llama.cpp's server tests, ``tools/server/tests/unit``.

Its tests of texts post to ``/completion``, a route of its own. Here they post to
``/v1/completions``, where its server takes the same fields; one case says that ``/completion``
itself is not served. What its tests ask of a certain model (that it calls a tool, or thinks) is
scripted for the mock.
"""

import base64
import json
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

from protocol.case import BOTH, KEY, MODEL, PAGE, Answer, Call, Case, get, script, user
from protocol.pictures import PNG, encoded, picture, shown

BOOK = [
    {"role": "system", "content": "Book"},
    {"role": "user", "content": "What is the best book"},
]
LONG = "What is the best book of all books that were ever written? " * 800


def chat(source: str, name: str, **options: Any) -> Case:
    """Return a case of one chat: a file's test, fields of the body, and what a case has."""
    keys = ("status", "holds", "names", "rejected", "otherwise", "servers")
    given = {key: options.pop(key) for key in keys if key in options}
    path = options.pop("path", "/chat/completions")
    body = {"messages": BOOK} | options
    return Case(source=source, name=name, calls=[Call(path, body)], **given)


def plain(source: str, name: str, **options: Any) -> Case:
    """Return the same of one plain completion."""
    return chat(
        source,
        name,
        **{"path": "/v1/completions", "messages": None, "prompt": "The meaning of life is"}
        | options,
    )


def _is_chat(answer: Answer) -> bool:
    choice = answer.choice
    return (
        "cmpl" in answer.json["id"]
        and bool(answer.json["system_fingerprint"])
        and answer.usage["completion_tokens"] == 5
        and choice["finish_reason"] == "length"
        and choice["message"]["role"] == "assistant"
        and bool(choice["message"]["content"])
    )


def _is_stream(answer: Answer) -> bool:
    deltas = [choice["delta"] for choice in answer.streamed]
    return (
        deltas[0]["role"] == "assistant"
        and not deltas[0]["content"]
        and not any("role" in delta for delta in deltas[1:])
        and len({event["id"] for event in answer.events}) == 1
        and {event["model"] for event in answer.events} == {answer.events[0]["model"]}
        and answer.finishes == ["length"]
        and "content" not in deltas[-1]
        and bool(answer.content)
        and answer.is_done
    )


def _spelled(entries: Sequence[Any], num_likeliest: int) -> str:
    """Return what the tokens of log-probabilities spell, or nothing if one of them is wrong."""
    right = all(
        entry["logprob"] <= 0
        and entry["bytes"] is not None
        and len(entry["top_logprobs"]) == num_likeliest
        for entry in entries
    )
    return "".join(entry["token"] for entry in entries) if right else ""


SAMPLING = "test_chat_completion.py::"
CHATS = [
    chat(
        f"{SAMPLING}test_chat_completion",
        "an answer ends after max_tokens, and has an id, a fingerprint and a role",
        max_tokens=5,
        holds=_is_chat,
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_chat_completion",
        "a user's content may be several text parts",
        messages=[BOOK[0], *user([{"type": "text", "text": t} for t in ("What is", "the best")])],
        max_tokens=5,
        holds=_is_chat,
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_chat_completion",
        "a model of null is the one that is served",
        model=None,
        max_tokens=5,
        holds=lambda a: bool(a.json["model"]),
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_chat_completion_stream",
        "a stream begins with the role, keeps its id, and ends with a finish reason",
        max_tokens=5,
        stream=True,
        holds=_is_stream,
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_chat_completion_with_openai_library",
        "seed and temperature are taken from the openai client",
        path="/v1/chat/completions",
        model=MODEL,
        max_tokens=5,
        seed=42,
        temperature=0.8,
        holds=lambda a: bool(a.json["system_fingerprint"]) and a.content is not None,
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_chat_completion_with_openai_library",
        "any name of a model is answered by the one that is served",
        path="/v1/chat/completions",
        model="gpt-3.5-turbo-instruct",
        status=404,
        names="model",
        rejected="a model that is not served is not replaced by another one; `model` may be left "
        "out, and the operator may give a model further names",
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_chat_template",
        "an answer shows its prompt with verbose",
        verbose=True,
        status=400,
        names="verbose",
        rejected="prompts are shown by `/v1/chat/completions/render`, without an answer",
    ),
    chat(
        f"{SAMPLING}test_apply_chat_template",
        "/apply-template answers the prompt of a conversation",
        path="/apply-template",
        messages=[{"role": "system", "content": "You are a test."}, *user("Hi there")],
        holds=lambda a: "You are a test." in a.json["prompt"] and "Hi there" in a.json["prompt"],
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_chat_template_assistant_prefill",
        "an answer goes on with the assistant's last message",
        path="/apply-template",
        messages=[*BOOK, {"role": "assistant", "content": "Whill"}],
        continue_final_message=True,
        holds=lambda a: a.json["prompt"].endswith("Whill"),
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_chat_template_assistant_prefill",
        "that message may be several text parts",
        path="/apply-template",
        messages=[
            *BOOK,
            {"role": "assistant", "content": [{"type": "text", "text": t} for t in ("Wh", "ill")]},
        ],
        continue_final_message=True,
        holds=lambda a: a.json["prompt"].endswith("Whill"),
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_chat_template_assistant_prefill",
        "an answer goes on with that message without a field that asks for it",
        path="/apply-template",
        messages=[*BOOK, {"role": "assistant", "content": "Whill"}],
        holds=lambda a: "Whill" in a.json["prompt"] and not a.json["prompt"].endswith("Whill"),
        servers=("demo",),
        otherwise="a message of the assistant is a finished turn, as in OpenAI's API, unless "
        "`continue_final_message`, `prefix` or `partial` says that it is not",
    ),
    *(
        chat(
            f"{SAMPLING}test_completion_with_response_format",
            name,
            messages=[BOOK[0], *user("Write an example")],
            response_format=response_format,
            max_tokens=max_tokens,
            holds=holds,
            servers=BOTH,
        )
        for name, response_format, max_tokens, holds in (
            (
                "json_object with a schema keeps to it",
                {"type": "json_object", "schema": {"const": "42"}},
                6,
                lambda a: a.content == '"42"',
            ),
            (
                "a json_schema needs no name",
                {"type": "json_schema", "json_schema": {"schema": {"const": "foooooo"}}},
                10,
                lambda a: a.content == '"foooooo"',
            ),
            (
                "json_object begins an object",
                {"type": "json_object"},
                10,
                lambda a: a.content.startswith("{"),
            ),
        )
    ),
    chat(
        f"{SAMPLING}test_completion_with_response_format",
        "a schema of items alone is that of an array",
        messages=[BOOK[0], *user("Write an example")],
        response_format={"type": "json_object", "schema": {"items": [{"type": "integer"}]}},
        max_tokens=10,
        holds=lambda a: bool(a.content),
        otherwise="`items` says nothing of values that are no arrays, as JSON Schema has it; "
        '`"type": "array"` does',
        servers=BOTH,
    ),
    *(
        chat(
            f"{SAMPLING}test_completion_with_response_format",
            f"{name} is an error",
            messages=[BOOK[0], *user("Write an example")],
            response_format=response_format,
            status=400,
            names="response_format",
            servers=BOTH,
        )
        for name, response_format in (
            ("a type that does not exist", {"type": "sound"}),
            ("a schema that is a number", {"type": "json_object", "schema": 123}),
            ("a schema whose type is a number", {"type": "json_object", "schema": {"type": 123}}),
            (
                "a schema of an unknown type",
                {"type": "json_object", "schema": {"type": "hiccup"}},
            ),
        )
    ),
    chat(
        f"{SAMPLING}test_completion_with_json_schema",
        "json_schema at the top level keeps an answer to it",
        json_schema={"const": "42"},
        max_tokens=6,
        holds=lambda a: a.content == '"42"',
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_completion_with_grammar",
        "grammar keeps an answer to a grammar in GBNF",
        messages=user("Does not matter what I say, does it?"),
        grammar='root ::= "a"{5,5}',
        max_tokens=6,
        status=400,
        names="grammar",
        rejected="grammars are in Lark's notation, in `structured_outputs.grammar`",
        servers=BOTH,
    ),
    *(
        chat(
            f"{SAMPLING}test_invalid_chat_completion_req",
            f"messages that are {name} are an error",
            messages=messages,
            status=400,
            names="messages",
            servers=BOTH,
        )
        for name, messages in (
            ("null", None),
            ("a string", "string"),
            ("numbers", [123]),
            ("empty objects", [{}]),
            ("of a role that is a number", [{"role": 123}]),
            ("of a content that is a number", [{"role": "system", "content": 123}]),
            ("right but for the last one", [{"role": "system", "content": "test"}, {}]),
        )
    ),
    chat(
        f"{SAMPLING}test_invalid_chat_completion_req",
        "two messages of the assistant at the end are an error",
        messages=[
            *user("test"),
            {"role": "assistant", "content": "test"},
            {"role": "assistant", "content": "test"},
        ],
        otherwise="turns of one role in a row are taken, as in OpenAI's API",
    ),
    chat(
        f"{SAMPLING}test_chat_completion_with_timings_per_token",
        "events have timings",
        stream=True,
        timings_per_token=True,
        status=400,
        names="timings_per_token",
        rejected="the header `server-timing` has the times, and `x-vlmkit-timing: 1` sends them "
        "at the end of a stream",
    ),
    chat(
        f"{SAMPLING}test_logprobs",
        "the tokens of log-probabilities spell the answer",
        temperature=0.0,
        max_tokens=5,
        logprobs=True,
        top_logprobs=10,
        holds=lambda a: _spelled(a.choice["logprobs"]["content"], 10) == a.content != "",
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_logprobs_stream",
        "so do those of a stream",
        temperature=0.0,
        max_tokens=5,
        logprobs=True,
        top_logprobs=10,
        stream=True,
        holds=lambda a: (
            _spelled(
                [
                    entry
                    for choice in a.streamed
                    for entry in (choice["logprobs"] or {"content": []})["content"]
                ],
                10,
            )
            == a.content
            != ""
        ),
        servers=BOTH,
    ),
    Case(
        source=f"{SAMPLING}test_logit_bias",
        name="tokens with a bias of -100 are not in the answer",
        calls=[
            Call("/tokenize", {"content": " book Book the The "}),
            lambda answers: Call(
                "/v1/chat/completions",
                {
                    "messages": BOOK,
                    "temperature": 0.0,
                    "max_tokens": 64,
                    "logit_bias": {str(token): -100 for token in answers[0].json["tokens"]},
                },
            ),
        ],
        holds=lambda _, a: a.content != "" and not set(a.content) & set("bok"),
    ),
    chat(
        f"{SAMPLING}test_context_size_exceeded",
        "a prompt that is too long is an error with the size of the context",
        messages=[BOOK[0], *user(LONG)],
        status=400,
        names="maximum context length is",
        holds=lambda a: a.json["error"]["code"] == "context_length_exceeded",
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_context_size_exceeded_stream",
        "so it is where a stream is asked for, before the stream begins",
        messages=[BOOK[0], *user(LONG)],
        stream=True,
        status=400,
        names="maximum context length is",
        servers=BOTH,
    ),
    chat(
        f"{SAMPLING}test_return_progress",
        "events tell how much of the prompt is computed",
        stream=True,
        return_progress=True,
        status=400,
        names="return_progress",
        rejected="a stream begins with the answer; comments keep it alive until then",
    ),
    chat(
        f"{SAMPLING}test_chat_completions_multiple_choices",
        "n asks for several choices",
        n=2,
        max_tokens=5,
        holds=lambda a: (
            [c["message"]["role"] for c in a.json["choices"]] == ["assistant"] * 2
            and [c["finish_reason"] for c in a.json["choices"]] == ["length"] * 2
        ),
        servers=BOTH,
    ),
]

BASIC = "test_basic.py::"
PROBES = [
    Case(
        source=f"{BASIC}test_server_start_simple",
        name="/health answers",
        calls=[get("/health")],
        servers=BOTH,
    ),
    Case(
        source=f"{BASIC}test_server_props",
        name="/props has the number of slots, and the context and sampling of each",
        calls=[get("/props")],
        holds=lambda a: (
            a.json["total_slots"] > 0
            and a.json["default_generation_settings"]["n_ctx"] >= 1024
            and "temperature" in a.json["default_generation_settings"]["params"]
        ),
        servers=BOTH,
    ),
    Case(
        source=f"{BASIC}test_server_props",
        name="/props has the path of the model's file",
        calls=[get("/props")],
        holds=lambda a: "model_path" not in a.json and a.json["model_alias"] != "",
        otherwise="where a model's files are is the operator's affair; `model_alias` names it",
    ),
    Case(
        source=f"{BASIC}test_server_models",
        name="/models lists the model that is served",
        calls=[get("/models")],
        holds=lambda a: len(a.json["data"]) == 1 and a.json["data"][0]["id"] in ("mock", "demo"),
        servers=BOTH,
    ),
    Case(
        source=f"{BASIC}test_server_slots",
        name="/slots has the context of each slot, and no prompts",
        calls=[get("/slots")],
        holds=lambda a: all(
            slot["n_ctx"] >= 1024 and slot["is_processing"] is False and "prompt" not in slot
            for slot in a.json
        ),
        servers=BOTH,
    ),
    Case(
        source=f"{BASIC}test_no_webui",
        name="/ is a page for browsers",
        calls=[get("/", accept="text/html")],
        holds=lambda a: "<!doctype html>" in a.text.lower(),
    ),
    Case(
        source="test_vision_api.py::test_models_supports_multimodal_capability",
        name="/models says under models[0].capabilities that a model takes images",
        calls=[get("/models")],
        holds=lambda a: "image" in a.json["data"][0]["modalities"],
        otherwise="`data[0].modalities` says it",
    ),
    Case(
        source="test_completion.py::test_cancel_request",
        name="no slot is busy after the answers",
        calls=[
            Call("/v1/completions", {"prompt": "Hi", "max_tokens": 4}),
            get("/slots"),
        ],
        holds=lambda _, a: not any(slot["is_processing"] for slot in a.json),
        servers=BOTH,
    ),
]

COMPLETION = "test_completion.py::"
LIFE = "The meaning of life is"


def _after_tokenizing(body: Callable[[list[int]], dict[str, Any]], text: str = LIFE) -> list[Any]:
    """Return requests: tokens of a text, then a completion whose body is made of them."""
    return [
        Call("/tokenize", {"content": text, "add_special": True}),
        lambda answers: Call(
            "/v1/completions", {"max_tokens": 5} | body(answers[0].json["tokens"])
        ),
    ]


TEXTS = [
    Case(
        source=f"{COMPLETION}test_completion",
        name="/completion answers in a shape of its own",
        calls=[Call("/completion", {"prompt": LIFE, "n_predict": 5})],
        status=404,
        names="/completion",
        rejected="texts are completed by `/v1/completions`, in OpenAI's shape",
        servers=BOTH,
    ),
    plain(
        f"{COMPLETION}test_completion",
        "n_predict bounds an answer",
        n_predict=5,
        holds=lambda a: a.usage["completion_tokens"] == 5 and a.choice["finish_reason"] == "length",
        servers=BOTH,
    ),
    plain(
        f"{COMPLETION}test_completion",
        "return_tokens adds the answer's tokens",
        n_predict=5,
        return_tokens=True,
        status=400,
        names="return_tokens",
        rejected="`return_token_ids`, by vLLM's name, adds them and those of the prompt",
    ),
    plain(
        f"{COMPLETION}test_completion_stream",
        "a stream has the text in events and ends with a finish reason",
        n_predict=5,
        stream=True,
        holds=lambda a: a.finishes == ["length"] and a.content != "" and a.is_done,
        servers=BOTH,
    ),
    Case(
        source=f"{COMPLETION}test_completion_stream_vs_non_stream",
        name="a stream has the text of a whole answer",
        calls=[
            Call("/v1/completions", {"prompt": LIFE, "n_predict": 5, "stream": stream})
            for stream in (False, True)
        ],
        holds=lambda whole, stream: whole.content == stream.content != "",
        servers=BOTH,
    ),
    plain(
        f"{COMPLETION}test_completion_with_openai_library",
        "an answer has a fingerprint, a text and a finish reason",
        model=MODEL,
        max_tokens=5,
        holds=lambda a: (
            bool(a.json["system_fingerprint"])
            and a.choice["finish_reason"] == "length"
            and a.content != ""
        ),
        servers=BOTH,
    ),
    plain(
        f"{COMPLETION}test_completion_stream_with_openai_library_stops",
        "a stream stops before a stop string, and sends no part of it",
        prompt="Sure, here is one.\nUser:\nAnother one.",
        stop=["User:\n", "Assistant:\n"],
        max_tokens=200,
        stream=True,
        holds=lambda a: a.content == "Sure, here is one.\n" and a.finishes == ["stop"],
    ),
    Case(
        source=f"{COMPLETION}test_consistent_result_same_seed",
        name="the same seed has the same answer",
        calls=[
            Call(
                "/v1/completions",
                {"prompt": LIFE, "seed": 42, "temperature": 0.0, "cache_prompt": False},
            )
        ]
        * 3,
        holds=lambda *answers: len({a.content for a in answers}) == 1,
        servers=BOTH,
    ),
    Case(
        source=f"{COMPLETION}test_different_result_different_seed",
        name="other seeds have other answers at temperature 1",
        calls=[
            Call("/v1/completions", {"prompt": LIFE, "seed": seed, "temperature": 1.0})
            for seed in range(4)
        ],
        holds=lambda *answers: len({a.content for a in answers}) > 1,
        servers=("demo",),
    ),
    plain(
        f"{COMPLETION}test_nocache_long_input_prompt",
        "a prompt that is too long is an error",
        prompt=LONG,
        cache_prompt=False,
        status=400,
        names="maximum context length is",
        servers=BOTH,
    ),
    Case(
        source=f"{COMPLETION}test_completion_with_tokens_input",
        name="a prompt may be tokens",
        calls=_after_tokenizing(lambda tokens: {"prompt": tokens}),
        holds=lambda _, a: a.content != "",
        servers=BOTH,
    ),
    Case(
        source=f"{COMPLETION}test_completion_with_tokens_input",
        name="a prompt may be several lists of tokens",
        calls=_after_tokenizing(lambda tokens: {"prompt": [tokens, tokens], "temperature": 0}),
        holds=lambda _, a: (
            len(a.json["choices"]) == 2
            and a.json["choices"][0]["text"] == a.json["choices"][1]["text"]
        ),
        servers=BOTH,
    ),
    Case(
        source=f"{COMPLETION}test_completion_with_tokens_input",
        name="a list of prompts may hold both texts and lists of tokens",
        calls=_after_tokenizing(lambda tokens: {"prompt": [tokens, LIFE]}),
        holds=lambda _, a: a.json["choices"][0]["text"] == a.json["choices"][1]["text"],
        servers=BOTH,
    ),
    plain(
        f"{COMPLETION}test_completion_with_tokens_input",
        "one prompt may mix tokens and texts",
        prompt=[1, 2, 3, LIFE, 4, 5, LIFE],
        status=400,
        names="prompt",
        rejected="a text is tokenized as a whole; `/tokenize` gives its tokens",
    ),
    plain(
        f"{COMPLETION}test_completion_response_fields",
        "an empty response_fields leaves the answer whole",
        response_fields=[],
        max_tokens=4,
        holds=lambda a: a.content != "" and "usage" in a.json,
        servers=BOTH,
    ),
    plain(
        f"{COMPLETION}test_completion_response_fields",
        "response_fields chooses fields of the answer",
        response_fields=["content", "prompt"],
        status=400,
        names="response_fields",
        rejected="an answer has the shape of OpenAI's API",
    ),
    plain(
        f"{COMPLETION}test_n_probs",
        "n_probs adds log-probabilities",
        n_probs=10,
        status=400,
        names="n_probs",
        rejected="`logprobs`, by OpenAI's name, adds them",
    ),
    plain(
        f"{COMPLETION}test_n_probs_stream",
        "n_probs adds them to events",
        n_probs=10,
        stream=True,
        status=400,
        names="n_probs",
        rejected="`logprobs`, by OpenAI's name, adds them",
    ),
    plain(
        f"{COMPLETION}test_n_probs_post_sampling",
        "post_sampling_probs has the probabilities after the filters",
        post_sampling_probs=True,
        status=400,
        names="post_sampling_probs",
        rejected="log-probabilities are the model's own, before temperature and filters",
    ),
    Case(
        source=f"{COMPLETION}test_logit_bias",
        name="logit_bias is an object of token ids",
        calls=_after_tokenizing(
            lambda tokens: {
                "prompt": "oboe book",
                "temperature": 0.0,
                "logit_bias": {str(token): -100 for token in tokens if token < 256},
            },
            text="book",
        ),
        holds=lambda _, a: a.content != "" and not set(a.content) & set("bok"),
    ),
    Case(
        source=f"{COMPLETION}test_logit_bias",
        name="logit_bias is a list of pairs",
        calls=_after_tokenizing(
            lambda tokens: {"prompt": LIFE, "logit_bias": [[token, -100] for token in tokens]}
        ),
        status=400,
        names="logit_bias",
        rejected="it is an object of token ids, as in OpenAI's API",
    ),
    plain(
        f"{COMPLETION}test_logit_bias",
        "logit_bias names texts",
        logit_bias={" book ": -100},
        status=400,
        names="logit_bias",
        rejected="a text may be several tokens, which other texts share; `/tokenize` has their ids",
    ),
    plain(
        "test_ignore_eos.py::test_ignore_eos_populates_logit_bias",
        "ignore_eos goes on to the bound",
        prompt="Hi",
        n_predict=5,
        ignore_eos=True,
        temperature=0.0,
        holds=lambda a: a.usage["completion_tokens"] == 5,
        servers=BOTH,
    ),
    plain(
        "test_ignore_eos.py::test_ignore_eos_false_no_logit_bias",
        "ignore_eos of false lets an answer end",
        prompt="Hi",
        n_predict=5,
        ignore_eos=False,
        temperature=0.0,
        holds=lambda a: a.content == "Hi" and a.choice["finish_reason"] == "stop",
    ),
    plain(
        "test_ctx_shift.py::test_ctx_shift_enabled",
        "a prompt that is too long loses its beginning",
        prompt=LONG,
        n_predict=64,
        status=400,
        names="maximum context length is",
        rejected="a context is never shifted: an answer to half of a prompt looks like one to all "
        "of it",
        servers=BOTH,
    ),
    plain(
        "test_ctx_shift.py::test_ctx_shift_disabled_short_prompt",
        "n_predict of -1 is bounded by the context alone",
        prompt="Hi how are you",
        n_predict=-1,
        holds=lambda a: a.content != "",
        servers=BOTH,
    ),
    plain(
        "test_ctx_shift.py::test_ctx_shift_disabled_long_prompt",
        "without shifting, such a prompt is an error",
        prompt=LONG,
        n_predict=64,
        status=400,
        names="maximum context length is",
        servers=BOTH,
    ),
    plain(
        "test_ctx_shift.py::test_ctx_shift_disabled_stream",
        "a stream ends with one finish reason",
        prompt="Once",
        n_predict=256,
        stream=True,
        holds=lambda a: a.content != "" and len(a.finishes) == 1,
        servers=BOTH,
    ),
    plain(
        "test_speculative.py::test_with_and_without_draft",
        "top_k of 1 takes the likeliest token",
        temperature=0.0,
        top_k=1,
        max_tokens=5,
        holds=lambda a: a.content != "",
        servers=BOTH,
    ),
    plain(
        "test_prefill.py::test_disaggregated_prefill_matches_local_and_preserves_cache",
        "n_cmpl asks for several answers",
        n_predict=2,
        n_cmpl=2,
        holds=lambda a: len(a.json["choices"]) == 2,
        servers=BOTH,
    ),
    Case(
        source="test_metrics.py::test_prompt_cache_metrics",
        name="the same prompt is found in the cache, and usage counts its tokens",
        calls=[
            Call("/v1/completions", {"prompt": LONG[:600], "n_predict": 5, "cache_prompt": True})
        ]
        * 2,
        holds=lambda _, a: a.usage["prompt_tokens_details"]["cached_tokens"] > 0,
        servers=BOTH,
    ),
    Case(
        source="test_metrics.py::test_prompt_cache_metrics",
        name="/metrics has the tokens of cached prompts by llama.cpp's names",
        calls=[get("/metrics")],
        holds=lambda a: "llamacpp:" not in a.text and "vllm:prefix_cache_hits" in a.text,
        otherwise="numbers have names of ours and of vLLM",
    ),
    chat(
        "test_reasoning_budget_stream.py::test_reasoning_custom_budget",
        "thinking_budget_tokens bounds reasoning",
        messages=user(script(reasoning="one and one and one", text="3")),
        thinking_budget_tokens=5,
        holds=lambda a: a.choice["message"]["reasoning_content"] == "one a" and a.content == "3",
    ),
    Case(
        source="test_infill.py::test_infill_without_input_extra",
        name="/infill fills in between a prefix and a suffix",
        calls=[
            Call(
                "/infill",
                {"input_prefix": "int main() {\n", "prompt": "    int n = ", "input_suffix": "}\n"},
            )
        ],
        status=404,
        names="/infill",
        rejected="no model family here has a prompt format for it; a client that knows its "
        "model's marks sends the whole text to `/v1/completions`",
    ),
    plain(
        "test_infill.py::test_infill_with_input_extra",
        "input_extra gives other files to fill in from",
        input_extra=[{"filename": "llama.h", "text": "int n_threads();\n"}],
        status=400,
        names="input_extra",
        rejected="there is no infill; the whole text goes into `prompt`",
    ),
    Case(
        source="test_lora.py::test_lora",
        name="/lora-adapters scales adapters for everyone",
        calls=[Call("/lora-adapters", [{"id": 0, "scale": 0.5}])],
        status=404,
        names="/lora-adapters",
        rejected="one client must not change the answers of others; the operator serves an "
        "adapter as a model of its own",
    ),
    plain(
        "test_lora.py::test_lora_per_request",
        "lora scales adapters for one request",
        lora=[{"id": 0, "scale": 0.5}],
        status=400,
        names="lora",
        rejected="an adapter is asked for as a model, if the operator serves it",
    ),
    Case(
        source="test_slot_save.py::test_slot_save_restore",
        name="a slot's state is saved to a file",
        calls=[Call("/slots/1?action=save", {"filename": "slot1.bin"})],
        status=404,
        names="/slots",
        rejected="slots cannot be saved: a server of several tenants keeps their prompts from "
        "each other; prefixes are cached by content",
    ),
    Case(
        source="test_slot_save.py::test_slot_save_restore",
        name="a slot's state is restored from a file",
        calls=[Call("/slots/0?action=restore", {"filename": "slot1.bin"})],
        status=404,
        names="/slots",
        rejected="slots cannot be saved: a server of several tenants keeps their prompts from "
        "each other; prefixes are cached by content",
    ),
    Case(
        source="test_slot_save.py::test_slot_erase",
        name="a slot's state is erased",
        calls=[Call("/slots/1?action=erase", {})],
        status=404,
        names="/slots",
        rejected="slots hold no state of their own that could be erased; what is cached makes "
        "room by itself",
    ),
    plain(
        "test_slot_save.py::test_slot_save_restore",
        "a request may name its slot, and have its prompt cached",
        id_slot=1,
        cache_prompt=True,
        max_tokens=4,
        holds=lambda a: a.content != "",
        servers=BOTH,
    ),
]

TOKENIZE = "test_tokenize.py::"
FRANCE = "What is the capital of France ?"
TOKENS = [
    Case(
        source=f"{TOKENIZE}test_tokenize_detokenize",
        name="/detokenize undoes /tokenize",
        calls=[
            Call("/tokenize", {"content": FRANCE}),
            lambda answers: Call("/detokenize", {"tokens": answers[0].json["tokens"]}),
        ],
        holds=lambda tokens, text: (
            len(tokens.json["tokens"]) > 5 and text.json["content"].strip() == FRANCE
        ),
        servers=BOTH,
    ),
    Case(
        source=f"{TOKENIZE}test_tokenize_with_bos",
        name="add_special puts the beginning's token first",
        calls=[
            Call("/tokenize", {"content": FRANCE}),
            Call("/tokenize", {"content": FRANCE, "add_special": True}),
        ],
        holds=lambda bare, special: (
            special.json["tokens"] == [257, *bare.json["tokens"]]  # the mock's <|begin|>
        ),
    ),
    Case(
        source=f"{TOKENIZE}test_tokenize_with_pieces",
        name="with_pieces has the id and the text of each token",
        calls=[
            Call(
                "/tokenize",
                {"content": "A test string with 媽 and 🤗", "with_pieces": True},
            )
        ],
        holds=lambda a: all(
            token["id"] >= 0 and len(token["piece"]) > 0 for token in a.json["tokens"]
        ),
        servers=BOTH,
    ),
]

EMBEDDING = "test_embedding.py::"


def embed(
    name: str, given: Any, *, test: str = "test_embedding_mixed_input", **options: Any
) -> Case:
    """Return a case of one request for vectors."""
    body = {"input": given} | options.pop("fields", {})
    call = Call(options.pop("path", "/v1/embeddings"), body)
    options.setdefault("servers", BOTH)
    return Case(source=f"{EMBEDDING}{test}", name=name, calls=[call], **options)


def _vectors(answer: Answer, num: int) -> bool:
    return (
        len(answer.json["data"]) == num
        and all(len(item["embedding"]) > 1 for item in answer.json["data"])
        and answer.usage["prompt_tokens"] == answer.usage["total_tokens"]
    )


def _decoded(text: str) -> list[float]:
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


ONE_KIND = "a text is tokenized as a whole; `/tokenize` gives its tokens"
NO_OBJECTS = "a text is a string; images are embedded in `messages`, as vLLM takes them"
VECTORS = [
    embed(
        "a text has a vector of length 1",
        LIFE,
        test="test_embedding_single",
        holds=lambda a: (
            _vectors(a, 1)
            and math.isclose(sum(x * x for x in a.json["data"][0]["embedding"]), 1, rel_tol=1e-3)
        ),
    ),
    embed(
        "several texts have a vector each",
        [LIFE, "Write a joke", "This is a test", "This is another test"],
        test="test_embedding_multiple",
        holds=lambda a: _vectors(a, 4),
    ),
    embed("one text", "string", holds=lambda a: _vectors(a, 1)),
    embed("the tokens of one text", [12, 34, 56], holds=lambda a: _vectors(a, 1)),
    embed("two texts", ["string1", "string2"], holds=lambda a: _vectors(a, 2)),
    embed("a text, and the tokens of another", ["a", [12, 34]], holds=lambda a: _vectors(a, 2)),
    embed("the tokens of two texts", [[12, 34], [56, 78]], holds=lambda a: _vectors(a, 2)),
    embed("an empty text", "", holds=lambda a: _vectors(a, 1), servers=("mock",)),
    embed(
        "an empty text, where the model's tokenizer puts no token before a text",
        "",
        status=400,
        names="input",
        rejected="a text without tokens has no vector",
        servers=("demo",),
    ),
    *(
        embed(name, given, status=400, names="input", rejected=why)
        for name, given, why in (
            ("tokens and a text in one", [12, 34, "string", 56], ONE_KIND),
            ("tokens with a text in one of two", [[12, 34], [12, "string", 56]], ONE_KIND),
            ("an object with prompt_string", {"prompt_string": "string"}, NO_OBJECTS),
            (
                "an object with content parts",
                {"content": [{"type": "text", "text": "string"}]},
                NO_OBJECTS,
            ),
        )
    ),
    embed("nothing", [], test="test_embedding_invalid_input", status=400, names="input"),
    embed(
        "content that is no list",
        {"content": "string"},
        test="test_embedding_invalid_input",
        status=400,
        names="input",
    ),
    embed(
        "the same text has the same vector",
        [LIFE] * 5,
        test="test_same_prompt_give_same_result",
        holds=lambda a: all(
            math.isclose(x, y, abs_tol=1e-3)
            for item in a.json["data"]
            for x, y in zip(item["embedding"], a.json["data"][0]["embedding"], strict=True)
        ),
    ),
    Case(
        source=f"{EMBEDDING}test_embedding_usage_multiple",
        name="usage counts the tokens of all texts",
        calls=[
            Call("/v1/embeddings", {"input": LIFE}),
            Call("/v1/embeddings", {"input": [LIFE, LIFE]}),
        ],
        holds=lambda one, two: two.usage["prompt_tokens"] == 2 * one.usage["prompt_tokens"] > 0,
        servers=BOTH,
    ),
    Case(
        source=f"{EMBEDDING}test_embedding_openai_library_base64",
        name="a vector in base64 is the same one",
        calls=[
            Call("/v1/embeddings", {"input": LIFE}),
            Call("/v1/embeddings", {"input": LIFE, "encoding_format": "base64"}),
        ],
        holds=lambda plain, b64: all(
            math.isclose(x, y, abs_tol=1e-3)
            for x, y in zip(
                plain.json["data"][0]["embedding"],
                _decoded(b64.json["data"][0]["embedding"]),
                strict=True,
            )
        ),
        servers=BOTH,
    ),
    embed(
        "a text that is too long is an error",
        LONG,
        test="test_embedding_error_prompt_too_long",
        status=400,
        names="maximum context length is",
    ),
    embed(
        "any name of a model is answered",
        LIFE,
        fields={"model": "text-embedding-3-small"},
        test="test_embedding_openai_library_single",
        status=404,
        names="model",
        rejected="a model that is not served is not replaced by another one; `model` may be left "
        "out, and the operator may give a model further names",
    ),
    Case(
        source="test_rerank.py::test_rerank",
        name="/rerank orders documents",
        calls=[
            Call("/rerank", {"query": "Machine learning is", "documents": ["A machine", "Paris"]})
        ],
        holds=lambda a: sorted(each["index"] for each in a.json["results"]) == [0, 1],
        servers=BOTH,
    ),
    Case(
        source="test_rerank.py::test_rerank_tei_format",
        name="/rerank orders texts, in the shape of text-embeddings-inference",
        calls=[Call("/rerank", {"query": "Machine learning is", "texts": ["A machine", "Paris"]})],
        status=400,
        names="documents",
        rejected="`documents` is the field of every other server that has this route",
    ),
    Case(
        source="test_rerank.py::test_rerank_top_n",
        name="top_n bounds how many are answered",
        calls=[
            Call(
                "/rerank",
                {"query": "Machine learning", "documents": ["A machine", "Paris"], "top_n": 1},
            )
        ],
        holds=lambda a: len(a.json["results"]) == 1,
        servers=BOTH,
    ),
    Case(
        source="test_compat_gcp.py::test_gcp_predict_camel_case",
        name="/predict answers the instances of Google's platform",
        calls=[
            Call(
                "/predict",
                {"instances": [{"@requestFormat": "chatCompletions", "messages": user("Hi")}]},
            )
        ],
        status=404,
        names="/predict",
        rejected="each instance is a request of its own to `/v1/chat/completions`",
    ),
]

TEST_TOOL = {
    "type": "function",
    "function": {
        "name": "test",
        "description": "",
        "parameters": {
            "type": "object",
            "properties": {"success": {"type": "boolean", "const": True}},
            "required": ["success"],
        },
    },
}
PYTHON_TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs code and returns what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to run."}},
            "required": ["code"],
        },
    },
}
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Get the current weather",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string", "description": "The city"}},
            "required": ["location"],
        },
    },
}
TEMPLATE = "test_template.py::"
TEMPLATES = [
    *(
        chat(
            f"{TEMPLATE}test_reasoning",
            f"/apply-template takes tools that are {name}",
            path="/apply-template",
            messages=user("What is today?"),
            tools=tools,
            holds=lambda a: "What is today?" in a.json["prompt"],
            servers=servers,
        )
        for name, tools, servers in (
            ("null", None, BOTH),
            ("an empty list", [], BOTH),
            ("functions", [TEST_TOOL], ("mock",)),
        )
    ),
    Case(
        source=f"{TEMPLATE}test_add_generation_prompt",
        name="add_generation_prompt of false leaves out what begins an answer",
        calls=[
            Call(
                "/apply-template",
                {"messages": user("What is today?"), "add_generation_prompt": begins},
            )
            for begins in (True, False)
        ],
        holds=lambda with_it, without: (
            with_it.json["prompt"].startswith(without.json["prompt"])
            and with_it.json["prompt"] != without.json["prompt"]
        ),
        servers=("demo",),
    ),
]

TOOL_CALL = "test_tool_call.py::"


def _modes(source: str, name: str, **options: Any) -> list[Case]:
    """Return a case for a whole answer and one for a stream."""
    return [
        chat(source, name + ending, path="/v1/chat/completions", stream=stream, **options)
        for ending, stream in (("", False), (", streamed", True))
    ]


CALLS = [
    *(
        case
        for tool, argument, asked in (
            (TEST_TOOL, "success", "Write an example"),
            (
                PYTHON_TOOL,
                "code",
                script(calls=[{"name": "python", "arguments": {"code": "print(1)"}}]),
            ),
        )
        for case in _modes(
            f"{TOOL_CALL}test_completion_with_required_tool_real_model",
            f"tool_choice of required makes a call of {tool['function']['name']}",
            messages=[BOOK[0], *user(asked)],
            tools=[tool],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=512,
            temperature=0.0,
            top_k=1,
            top_p=1.0,
            holds=lambda a, tool=tool, argument=argument: (
                [name for name, _ in a.calls] == [tool["function"]["name"]]
                and argument in a.calls[0][1]
            ),
        )
    ),
    *(
        case
        for name, tools, tool_choice in (
            ("an empty list of tools", [], None),
            ("tools that the model does not want", [TEST_TOOL], None),
            ("tool_choice of none", [PYTHON_TOOL], "none"),
        )
        for case in _modes(
            f"{TOOL_CALL}test_completion_without_tool_call_fast",
            f"{name}: no call",
            messages=[BOOK[0], *user("say hello world with python")],
            tools=tools,
            tool_choice=tool_choice,
            max_tokens=128,
            holds=lambda a: not a.calls and a.content != "",
        )
    ),
    *_modes(
        f"{TOOL_CALL}test_weather",
        "a call has a name and arguments of its schema",
        messages=user(
            script(calls=[{"name": "get_current_weather", "arguments": {"location": "Istanbul"}}])
        ),
        tools=[WEATHER_TOOL],
        max_tokens=512,
        holds=lambda a: a.calls == [("get_current_weather", {"location": "Istanbul"})],
    ),
    *_modes(
        f"{TOOL_CALL}test_hello_world",
        "a call has the code that the model wrote",
        messages=user(
            script(calls=[{"name": "python", "arguments": {"code": 'print("Hello, world!")'}}])
        ),
        tools=[PYTHON_TOOL],
        max_tokens=512,
        holds=lambda a: a.calls == [("python", {"code": 'print("Hello, world!")'})],
    ),
    *_modes(
        f"{TOOL_CALL}test_calc_result",
        "a call and its result are part of a conversation",
        messages=[
            *user("What's the y coordinate of a point at 30 degrees?"),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_6789",
                        "type": "function",
                        "function": {
                            "name": "calculate",
                            "arguments": json.dumps({"expression": "sin(pi / 6)"}),
                        },
                    }
                ],
            },
            {
                "role": "tool",
                "name": "calculate",
                "content": "0.5",
                "tool_call_id": "call_6789",
            },
        ],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "calculate",
                    "parameters": {
                        "type": "object",
                        "properties": {"expression": {"type": "string"}},
                        "required": ["expression"],
                    },
                },
            }
        ],
        max_tokens=512,
        holds=lambda a: not a.calls and "0.5" in a.content,
    ),
    *_modes(
        f"{TOOL_CALL}test_thoughts",
        "reasoning is apart from the content",
        messages=user(script(reasoning="I add 102 and 7.", text="The sum is 109.")),
        max_tokens=1024,
        holds=lambda a: (
            (
                "".join(c["delta"].get("reasoning_content") or "" for c in a.streamed)
                if a.text.startswith("data:")
                else a.choice["message"]["reasoning_content"]
            )
            == "I add 102 and 7."
            and a.content == "The sum is 109."
        ),
    ),
    chat(
        f"{TOOL_CALL}test_malformed_tool_call_args_rejected",
        "arguments of an earlier call that are no JSON are an error that says where",
        path="/v1/chat/completions",
        messages=[
            *user("Hello"),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_123",
                        "type": "function",
                        "function": {"name": "test", "arguments": "{"},
                    }
                ],
            },
            *user("Continue"),
        ],
        status=400,
        names="messages[1]",
        holds=lambda a: a.json["error"]["type"] == "invalid_request_error",
    ),
]

VISION = "test_vision_api.py::"
IMAGES = [
    chat(
        f"{VISION}test_vision_chat_completion",
        "an image may be a data URL",
        messages=shown(PNG),
        temperature=0.0,
        top_k=1,
        holds=lambda a: bool(a.content) and a.choice["message"]["role"] == "assistant",
        servers=BOTH,
    ),
    *(
        chat(
            f"{VISION}test_vision_chat_completion",
            f"{name} is an error",
            messages=shown(url),
            status=400,
            names="image_url",
            servers=BOTH,
        )
        for name, url in (
            ("a URL that is none", "malformed"),
            ("an address with nothing there", "https://google.com/404"),
            ("a page in place of an image", "https://ggml.ai"),
            ("a file of the server", "file:///tmp/11_truck.png"),
        )
    ),
    chat(
        f"{VISION}test_vision_chat_completion",
        "an image may be at an address",
        messages=shown("https://huggingface.co/ggml-org/tinygemma3-GGUF/resolve/main/11.png"),
        status=400,
        names="image_url",
        rejected="the server fetches from nowhere unless the operator sets `fetch.enabled`",
    ),
    plain(
        f"{VISION}test_vision_completion",
        "a plain prompt may be an object with images",
        prompt={
            "prompt_string": "What is this: <__media__>\n",
            "multimodal_data": [encoded(picture())],
        },
        status=400,
        names="prompt",
        rejected="images are shown in `messages`, whose template puts their marks",
    ),
    Case(
        source=f"{VISION}test_vision_embeddings",
        name="texts with images are embedded by content",
        calls=[
            Call(
                "/embeddings",
                {"content": [{"prompt_string": "<__media__>", "multimodal_data": ["AAAA"]}]},
            )
        ],
        status=400,
        names="content",
        rejected="images are embedded in `messages`, as vLLM takes them",
    ),
    chat(
        "test_security.py::test_local_media_file",
        "a file is an error where no folder of media is set",
        messages=shown("file://mtmd/test-1.jpeg"),
        max_tokens=1,
        status=400,
        names="image_url",
        servers=BOTH,
    ),
    chat(
        "test_security.py::test_local_media_file",
        "a file outside of that folder is an error",
        messages=shown("file://../mtmd/test-1.jpeg"),
        max_tokens=1,
        status=400,
        names="image_url",
    ),
]

SECURITY = "test_security.py::"
BARE = {"authorization": ""}


def _preflight(origin: str) -> Call:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "Authorization",
    }
    return Call("/completions", method="OPTIONS", headers=headers | BARE)


KEYS = [
    Case(
        source=f"{SECURITY}test_access_public_endpoint",
        name="/health needs no key",
        calls=[Call("/health", method="GET", headers=BARE)],
        servers=["keyed"],
    ),
    Case(
        source=f"{SECURITY}test_access_public_endpoint",
        name="/models needs no key",
        calls=[Call("/models", method="GET", headers=BARE)],
        status=401,
        names="key",
        rejected="which models there are is for holders of keys alone, as in vLLM",
        servers=["keyed"],
    ),
    Case(
        source=f"{SECURITY}test_access_static_assets_without_api_key",
        name="the page for browsers needs no key",
        calls=[Call("/", method="GET", headers=BARE | {"accept": "text/html"})],
        holds=lambda a: "<!doctype html>" in a.text.lower(),
        servers=["keyed"],
    ),
    *(
        Case(
            source=f"{SECURITY}test_incorrect_api_key",
            name=f"{name} is a 401",
            calls=[Call("/completions", {"prompt": LIFE}, headers={"authorization": key})],
            status=401,
            names="key",
            servers=["keyed"],
        )
        for name, key in (("no key", ""), ("an unknown key", "Bearer invalid-key"))
    ),
    Case(
        source=f"{SECURITY}test_correct_api_key",
        name="a key is taken as a bearer token",
        calls=[Call("/completions", {"prompt": LIFE})],
        holds=lambda a: a.content != "",
        servers=["keyed"],
    ),
    Case(
        source=f"{SECURITY}test_correct_api_key_anthropic_header",
        name="a key is taken in x-api-key, as Anthropic's clients send it",
        calls=[Call("/completions", {"prompt": LIFE}, headers=BARE | {"x-api-key": KEY})],
        holds=lambda a: a.content != "",
        servers=["keyed"],
    ),
    Case(
        source=f"{SECURITY}test_openai_library_correct_api_key",
        name="the openai client may have an address without /v1",
        calls=[Call("/chat/completions", {"model": MODEL, "messages": BOOK})],
        holds=lambda a: len(a.json["choices"]) == 1,
        servers=["keyed"],
    ),
    Case(
        source=f"{SECURITY}test_cors_options",
        name="a page of a listed origin may post",
        calls=[_preflight(PAGE)],
        status=204,
        holds=lambda a: (
            a.headers["access-control-allow-origin"] == PAGE
            and "POST" in a.headers["access-control-allow-methods"]
            and a.headers["access-control-allow-headers"] == "Authorization"
        ),
        servers=["keyed"],
    ),
    Case(
        source=f"{SECURITY}test_cors_options",
        name="a page of any origin may post",
        calls=[_preflight("https://web.mydomain.fr")],
        status=204,
        holds=lambda a: "access-control-allow-origin" not in a.headers,
        otherwise="any page that a user opens could use a server on their machine; the operator "
        "lists origins in `server.allowed_origins`",
        servers=["keyed"],
    ),
    Case(
        source=f"{SECURITY}test_cors_options",
        name="pages may send credentials of their own",
        calls=[_preflight(PAGE)],
        status=204,
        holds=lambda a: "access-control-allow-credentials" not in a.headers,
        otherwise="a key is a header that the page sets, so no cookie is ever needed",
        servers=["keyed"],
    ),
]

ANTHROPIC = "test_compat_anthropic.py::"
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a location",
    "input_schema": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "City name"}},
        "required": ["location"],
    },
}
ASKED_FOR = {
    "role": "assistant",
    "content": [
        {"type": "tool_use", "id": "tool_1", "name": "get_weather", "input": {"location": "Paris"}}
    ],
}


def message(test: str, name: str, **options: Any) -> Case:
    """Return a case of one message of Anthropic's API."""
    path = options.pop("path", "/v1/messages")
    keys = ("status", "holds", "names", "rejected", "otherwise", "servers")
    given = {"servers": BOTH} | {key: options.pop(key) for key in keys if key in options}
    bound = {} if path.endswith("count_tokens") else {"max_tokens": 50}
    body = {"model": MODEL, "messages": user("Say hello")} | bound | options
    return Case(source=f"{ANTHROPIC}{test}", name=name, calls=[Call(path, body)], **given)


def _is_message(answer: Answer) -> bool:
    return answer.json["type"] == "message" and len(answer.json["content"]) > 0


def _is_whole_message(answer: Answer) -> bool:
    usage = answer.usage
    return (
        _is_message(answer)
        and answer.json["role"] == "assistant"
        and answer.json["content"][0]["type"] == "text"
        and answer.json["stop_reason"] in ("end_turn", "max_tokens")
        and all(
            isinstance(usage[name], int)
            for name in ("cache_read_input_tokens", "input_tokens", "output_tokens")
        )
        and usage["output_tokens"] > 0
        and "timings" not in answer.json
    )


def _is_message_stream(answer: Answer) -> bool:
    events = answer.events
    start = events[0]["message"]
    first = events[1]
    deltas = [event for event in events if event["type"] == "content_block_delta"]
    (end,) = (event for event in events if event["type"] == "message_delta")
    return (
        answer.types[0] == "message_start"
        and answer.types[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        and start["type"] == "message"
        and start["role"] == "assistant"
        and start["content"] == []
        and start["usage"]["input_tokens"] > 0
        and first["type"] == "content_block_start"
        and first["index"] == 0
        and first["content_block"]["type"] == "text"
        and all(event["delta"]["type"] == "text_delta" for event in deltas)
        and any(event["delta"]["text"] for event in deltas)
        and end["delta"]["stop_reason"] in ("end_turn", "max_tokens")
        and end["usage"]["output_tokens"] > 0
        and not any("timings" in event for event in events)
    )


def _blocks(answer: Answer, kind: str) -> list[Any]:
    return [
        event["content_block"]
        for event in answer.events
        if event["type"] == "content_block_start" and event["content_block"]["type"] == kind
    ]


def _are_numbered(answer: Answer) -> bool:
    starts, stops = (
        [event["index"] for event in answer.events if event["type"] == f"content_block_{end}"]
        for end in ("start", "stop")
    )
    return starts == stops == list(range(len(starts)))


def _thinks(answer: Answer) -> bool:
    kinds = [
        event["delta"]["type"] for event in answer.events if event["type"] == "content_block_delta"
    ]
    return (
        [block["type"] for event in answer.events if (block := event.get("content_block"))]
        == ["thinking", "text"]
        and _are_numbered(answer)
        and kinds.index("thinking_delta")
        < kinds.index("signature_delta")
        < kinds.index("text_delta")
    )


CALL = script(calls=[{"name": "get_weather", "arguments": {"location": "Paris"}}])
THOUGHT = script(reasoning="Two and two.", text="4")
MESSAGES = [
    message("test_anthropic_messages_basic", "an answer is a message", holds=_is_whole_message),
    message(
        "test_anthropic_messages_with_system",
        "system is taken",
        system="You are a helpful assistant.",
        holds=_is_message,
    ),
    message(
        "test_anthropic_messages_multipart_content",
        "content may be several blocks",
        messages=user([{"type": "text", "text": t} for t in ("What is", " the answer?")]),
        holds=_is_message,
    ),
    message(
        "test_anthropic_messages_conversation",
        "turns follow each other",
        messages=[
            *user("Hello"),
            {"role": "assistant", "content": "Hi there!"},
            *user("How are you?"),
        ],
        holds=_is_message,
    ),
    message(
        "test_anthropic_messages_streaming",
        "a stream has Anthropic's events in their order",
        stream=True,
        max_tokens=30,
        holds=_is_message_stream,
    ),
    *(
        message(
            test,
            name,
            path="/v1/messages/count_tokens",
            holds=lambda a: a.json["input_tokens"] > 0 and "output_tokens" not in a.json,
            **fields,
        )
        for test, name, fields in (
            ("test_anthropic_count_tokens", "tokens are counted", {}),
            (
                "test_anthropic_count_tokens_with_system",
                "with those of system",
                {"system": "You are a helpful assistant."},
            ),
            ("test_anthropic_count_tokens_no_max_tokens", "without max_tokens", {}),
        )
    ),
    message(
        "test_anthropic_tool_use_basic",
        "a call is a block of type tool_use",
        tools=[WEATHER],
        max_tokens=200,
        messages=user(CALL),
        holds=lambda a: (
            a.json["stop_reason"] == "tool_use"
            and a.json["content"][-1]["name"] == "get_weather"
            and a.json["content"][-1]["input"] == {"location": "Paris"}
            and bool(a.json["content"][-1]["id"])
        ),
        servers=("mock",),
    ),
    *(
        message(
            test,
            name,
            messages=[
                *user("What's the weather?"),
                ASKED_FOR,
                {"role": "user", "content": content},
            ],
            max_tokens=100,
            holds=lambda a: _is_message(a) and a.json["content"][0]["type"] == "text",
            servers=("mock",),
        )
        for test, name, content in (
            (
                "test_anthropic_tool_result",
                "a result is taken",
                [{"type": "tool_result", "tool_use_id": "tool_1", "content": "Sunny, 25°C"}],
            ),
            (
                "test_anthropic_tool_result_with_text",
                "a result is taken beside text",
                [
                    {"type": "text", "text": "Here are the results:"},
                    {"type": "tool_result", "tool_use_id": "tool_1", "content": "Sunny, 25°C"},
                ],
            ),
            (
                "test_anthropic_tool_result_error",
                "a result may be an error",
                [
                    {
                        "type": "tool_result",
                        "tool_use_id": "tool_1",
                        "is_error": True,
                        "content": "City not found",
                    }
                ],
            ),
        )
    ),
    message(
        "test_anthropic_tool_streaming",
        "a streamed call begins a block with its name",
        stream=True,
        tools=[WEATHER],
        max_tokens=200,
        messages=user(CALL),
        holds=lambda a: (
            a.types[0] == "message_start"
            and a.types[-1] == "message_stop"
            and [block["name"] for block in _blocks(a, "tool_use")] == ["get_weather"]
        ),
        servers=("mock",),
    ),
    *(
        message(
            test,
            name,
            max_tokens=10,
            messages=user(
                [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": data},
                    },
                    {"type": "text", "text": "What is this?"},
                ]
            ),
            **options,
        )
        for test, name, data, options in (
            (
                "test_anthropic_vision_format_accepted",
                "an image of one pixel is taken",
                encoded(picture(size=(1, 1))),
                {
                    "status": 400,
                    "names": "image",
                    "rejected": "a picture of one pixel shows nothing that a processor could scale",
                },
            ),
            (
                "test_anthropic_vision_base64_with_multimodal_model",
                "an image in base64 is shown",
                encoded(picture()),
                {"holds": lambda a: a.json["content"][0]["text"] != ""},
            ),
        )
    ),
    *(
        message(test, name, holds=_is_message, **fields)
        for test, name, fields in (
            (
                "test_anthropic_stop_sequences",
                "stop_sequences is taken",
                {"stop_sequences": ["\n", "END"], "max_tokens": 100},
            ),
            ("test_anthropic_temperature", "temperature is taken", {"temperature": 0.5}),
            ("test_anthropic_top_p", "top_p is taken", {"top_p": 0.9}),
            ("test_anthropic_top_k", "top_k is taken", {"top_k": 40}),
            (
                "test_anthropic_metadata",
                "metadata is taken",
                {"metadata": {"user_id": "test_user_123"}},
            ),
        )
    ),
    message(
        "test_anthropic_missing_messages",
        "a body without messages is an error",
        messages=None,
        status=400,
        names="messages",
    ),
    message(
        "test_anthropic_empty_messages",
        "an empty conversation is answered",
        messages=[],
        status=400,
        names="messages",
        rejected="a conversation without a message asks nothing; Anthropic's API refuses it, too",
    ),
    message(
        "test_anthropic_streaming_content_block_indices",
        "blocks of a stream are numbered from 0",
        stream=True,
        tools=[WEATHER],
        max_tokens=400,
        messages=user(
            script(
                text="I look.", calls=[{"name": "get_weather", "arguments": {"location": "Rome"}}]
            )
        ),
        holds=lambda a: len(_blocks(a, "tool_use")) == 1 and _are_numbered(a),
        servers=("mock",),
    ),
    message(
        "test_anthropic_thinking",
        "thinking is taken, with a budget",
        max_tokens=100,
        thinking={"type": "enabled", "budget_tokens": 50},
        holds=_is_message,
        servers=("mock",),
    ),
    Case(
        source=f"{ANTHROPIC}test_anthropic_vs_openai_different_response_format",
        name="each API has its own shape",
        calls=[
            Call(path, {"model": MODEL, "max_tokens": 50, "messages": user("Hello")})
            for path in ("/v1/chat/completions", "/v1/messages")
        ],
        holds=lambda chat, message: (
            chat.json["object"] == "chat.completion"
            and message.json["type"] == "message"
            and {"prompt_tokens", "completion_tokens"} <= set(chat.usage)
            and {"input_tokens", "output_tokens"} <= set(message.usage)
        ),
        servers=BOTH,
    ),
    message(
        "test_anthropic_thinking_with_reasoning_model",
        "reasoning is a block before the text",
        max_tokens=1024,
        thinking={"type": "enabled", "budget_tokens": 500},
        messages=user(THOUGHT),
        holds=lambda a: (
            [block["type"] for block in a.json["content"]] == ["thinking", "text"]
            and a.json["content"][0]["thinking"] == "Two and two."
            and "signature" in a.json["content"][0]
        ),
        servers=("mock",),
    ),
    message(
        "test_anthropic_thinking_with_reasoning_model",
        "so it is in a stream, with a signature at its end",
        max_tokens=1024,
        stream=True,
        thinking={"type": "enabled", "budget_tokens": 500},
        messages=user(THOUGHT),
        holds=_thinks,
        servers=("mock",),
    ),
]

RESPONSES = "test_compat_oai_responses.py::"


def response(test: str, name: str, **options: Any) -> Case:
    """Return a case of one response of OpenAI's newer API."""
    keys = ("status", "holds", "names", "rejected", "otherwise", "servers")
    given = {"servers": BOTH} | {key: options.pop(key) for key in keys if key in options}
    body = {"input": "Write an example"} | options
    return Case(source=f"{RESPONSES}{test}", name=name, calls=[Call("/responses", body)], **given)


def _text(answer: Answer) -> str:
    texts = [
        part["text"]
        for item in answer.json["output"]
        if item["type"] == "message"
        for part in item["content"]
    ]
    return "".join(texts)


def _is_response_stream(answer: Answer) -> bool:
    events = answer.events
    last = events[-1]["response"]
    item = last["output"][0]["id"]
    parts = [event["item_id"] for event in events if "item_id" in event]
    items = [event["item"]["id"] for event in events if "item" in event]
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    return (
        answer.types[:2] == ["response.created", "response.in_progress"]
        and {e["response"]["id"] for e in events if "response" in e} == {last["id"]}
        and last["id"].startswith("resp_")
        and item.startswith("msg_")
        and set(parts) == set(items) == {item}
        and text == last["output"][0]["content"][0]["text"] != ""
    )


NEWER = [
    *(
        response(
            "test_responses_with_text_format",
            name,
            text={"format": text_format},
            max_output_tokens=10,
            **options,
        )
        for name, text_format, options in (
            (
                "a schema is kept to",
                {"type": "json_schema", "name": "test", "schema": {"const": "foooooo"}},
                {"holds": lambda a: _text(a) == '"foooooo"'},
            ),
            (
                "json_object begins an object",
                {"type": "json_object"},
                {"holds": lambda a: _text(a).startswith("{")},
            ),
            ("text is free", {"type": "text"}, {"holds": lambda a: _text(a) != ""}),
            (
                "json_schema without a schema is an error",
                {"type": "json_schema", "name": "test"},
                {"status": 400, "names": "text.format"},
            ),
        )
    ),
    response(
        "test_responses_with_openai_library",
        "ids say what they are of",
        model=MODEL,
        input=BOOK,
        max_output_tokens=5,
        temperature=0.8,
        holds=lambda a: (
            a.json["id"].startswith("resp_")
            and a.json["output"][0]["id"].startswith("msg_")
            and _text(a) != ""
        ),
    ),
    response(
        "test_responses_stream_with_openai_library",
        "events of a stream name their response and item",
        model=MODEL,
        input=BOOK,
        max_output_tokens=5,
        temperature=0.8,
        stream=True,
        holds=_is_response_stream,
    ),
    response(
        "test_responses_stream_with_llama_telemetry",
        "events have timings and progress",
        stream=True,
        timings_per_token=True,
        return_progress=True,
        status=400,
        names="timings_per_token",
        rejected="the header `server-timing` has the times; events have OpenAI's fields",
    ),
]

CASES: Sequence[Case] = (
    *CHATS,
    *PROBES,
    *TEXTS,
    *TOKENS,
    *VECTORS,
    *TEMPLATES,
    *CALLS,
    *IMAGES,
    *KEYS,
    *MESSAGES,
    *NEWER,
)
