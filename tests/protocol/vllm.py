"""Cases of vLLM's server tests, ``tests/entrypoints``.

What its tests ask of a certain model (that it calls a tool, or thinks) is scripted for the mock.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from protocol.case import BOTH, MODEL, PAGE, Answer, Call, Case, Server, get, script, user
from protocol.pictures import PNG, data_url, picture, shown

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SUM = [
    {"role": "system", "content": "you are a helpful assistant"},
    {"role": "user", "content": "what is 1+1?"},
]
OPTIONS = ("status", "holds", "names", "rejected", "otherwise", "servers")


def one(source: str, name: str, path: str, body: dict[str, Any], **options: Any) -> Case:
    """Return a case of one request.

    Args:
        source: file and name of the test.
        name: what is asked and expected.
        path: the route.
        body: what every such body has.
        **options: fields of the body, and what a case has; it is tried on both models.
    """
    given = {"servers": BOTH} | {key: options.pop(key) for key in OPTIONS if key in options}
    return Case(
        source=source, name=name, calls=[Call(path, {"model": MODEL} | body | options)], **given
    )


def chat(source: str, name: str, **options: Any) -> Case:
    """Return a case of one chat."""
    return one(source, name, CHAT, {"messages": SUM}, **options)


def text(source: str, name: str, **options: Any) -> Case:
    """Return a case of one plain completion."""
    return one(source, name, TEXT, {"prompt": "Hello, my name is", "max_tokens": 5}, **options)


def response(source: str, name: str, **options: Any) -> Case:
    """Return a case of one response."""
    return one(source, name, "/v1/responses", {"input": "What is 13 * 24?"}, **options)


def chat_call(**fields: Any) -> Call:
    """Return a chat, for cases of several requests."""
    return Call(CHAT, {"model": MODEL, "messages": SUM, "max_completion_tokens": 5} | fields)


def text_call(**fields: Any) -> Call:
    """Return a plain completion, for cases of several requests."""
    body = {"model": MODEL, "prompt": "The meaning of life is", "max_tokens": 5, "temperature": 0.0}
    return Call(TEXT, body | fields)


def response_call(**fields: Any) -> Call:
    """Return a response, for cases of several requests."""
    return Call("/v1/responses", {"model": MODEL, "input": "Hello!"} | fields)


def _tops(answer: Answer) -> list[int]:
    return [len(entry["top_logprobs"]) for entry in answer.choice["logprobs"]["content"]]


def _adds_up(usage: Any) -> bool:
    return bool(
        usage["prompt_tokens"] > 0
        and usage["completion_tokens"] > 0
        and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    )


def _no_usage(answer: Answer) -> bool:
    return not any(event.get("usage") for event in answer.events) and answer.is_done


def _usage_last(answer: Answer) -> bool:
    *events, last = answer.events
    return (
        not any(event.get("usage") for event in events)
        and last["choices"] == []
        and _adds_up(last["usage"])
    )


def _usage_always(answer: Answer) -> bool:
    counts = [event["usage"]["completion_tokens"] for event in answer.events]
    return (
        counts == sorted(counts)
        and all(
            event["usage"]["total_tokens"]
            == event["usage"]["prompt_tokens"] + event["usage"]["completion_tokens"]
            for event in answer.events
        )
        and _adds_up(answer.events[-1]["usage"])
    )


NO_MORE = "answers are bounded to 20 likeliest, as vLLM's are unless its operator says otherwise"
T = "test_chat.py::"
LOGPROBS = [
    chat(
        f"{T}test_no_logprobs_chat",
        "logprobs of false has none",
        logprobs=False,
        max_completion_tokens=5,
        holds=lambda a: a.choice["logprobs"] is None,
    ),
    *(
        chat(
            f"{T}{test}",
            f"top_logprobs of {num} has {num} likeliest of each token",
            logprobs=True,
            top_logprobs=num,
            max_completion_tokens=5,
            holds=lambda a, num=num: set(_tops(a)) == {num},
        )
        for test, num in (("test_zero_logprobs_chat", 0), ("test_some_logprobs_chat", 5))
    ),
    *(
        chat(
            f"{T}test_too_many_chat_logprobs",
            f"top_logprobs of {num} is an error{ending}",
            logprobs=True,
            top_logprobs=num,
            stream=stream,
            status=400,
            names="top_logprobs",
        )
        for num, stream, ending in ((21, True, " before a stream begins"), (30, False, ""))
    ),
    Case(
        source=f"{T}test_too_many_chat_logprobs",
        name="the server answers after such an error",
        calls=[chat_call(logprobs=True, top_logprobs=30), chat_call()],
        holds=lambda refused, a: refused.status == 400 and a.content is not None,
        servers=BOTH,
    ),
    chat(
        f"{T}test_prompt_logprobs_chat",
        "prompt_logprobs of 1 has those of the prompt",
        prompt_logprobs=1,
        max_tokens=2,
        holds=lambda a: len(a.json["prompt_logprobs"]) == a.usage["prompt_tokens"],
    ),
    chat(
        f"{T}test_prompt_logprobs_chat",
        "prompt_logprobs of 0 has those of the prompt's own tokens",
        prompt_logprobs=0,
        max_tokens=2,
        holds=lambda a: len(a.json["prompt_logprobs"]) == a.usage["prompt_tokens"],
    ),
    chat(
        f"{T}test_prompt_logprobs_chat",
        "prompt_logprobs of -1 is an error",
        prompt_logprobs=-1,
        status=400,
        names="prompt_logprobs",
    ),
    chat(
        f"{T}test_prompt_logprobs_chat",
        "without it there are none",
        max_tokens=2,
        holds=lambda a: a.json.get("prompt_logprobs") is None,
    ),
    Case(
        source=f"{T}test_more_than_one_prompt_logprobs_chat",
        name="more of them have more entries",
        calls=[chat_call(prompt_logprobs=num) for num in (1, 2)],
        holds=lambda one, two: (
            max(len(entry) for entry in one.json["prompt_logprobs"][1:]) <= 2
            and max(len(entry) for entry in two.json["prompt_logprobs"][1:]) >= 2
        ),
        servers=BOTH,
    ),
    chat(
        "test_chat_echo.py::test_top_logprobs",
        "top_logprobs of -1 has the whole vocabulary",
        logprobs=True,
        top_logprobs=-1,
        max_tokens=1,
        status=400,
        names="top_logprobs",
        rejected=NO_MORE,
    ),
    chat(
        "test_chat_echo.py::test_prompt_logprobs",
        "prompt_logprobs of -1 has the whole vocabulary, where --max-logprobs allows it",
        prompt_logprobs=-1,
        status=400,
        names="prompt_logprobs",
        rejected=NO_MORE,
    ),
]

STREAMS = [
    Case(
        source=f"{T}test_single_chat_session",
        name="an answer is followed by another question",
        calls=[
            chat_call(logprobs=True, top_logprobs=5),
            lambda answers: chat_call(
                messages=[
                    *SUM,
                    {"role": "assistant", "content": answers[0].content},
                    *user("express your result in json"),
                ]
            ),
        ],
        holds=lambda first, then: (
            first.json["id"] != ""
            and first.choice["finish_reason"] == "length"
            and first.usage["completion_tokens"] == 5
            and _adds_up(first.usage)
            and first.choice["message"]["role"] == "assistant"
            and then.content != ""
        ),
        servers=BOTH,
    ),
    Case(
        source=f"{T}test_chat_streaming",
        name="a stream has the text and the finish reason of a whole answer, once",
        calls=[chat_call(temperature=0.0, stream=stream) for stream in (False, True)],
        holds=lambda whole, stream: (
            stream.content == whole.content != ""
            and stream.finishes == [whole.choice["finish_reason"]]
            and all(c["delta"].get("role") in (None, "assistant") for c in stream.streamed)
        ),
        servers=BOTH,
    ),
    *(
        chat(
            f"{T}test_chat_completion_stream_options",
            name,
            stream=True,
            stream_options=stream_options,
            max_completion_tokens=5,
            holds=holds,
        )
        for name, stream_options, holds in (
            ("include_usage of false has no usage", {"include_usage": False}, _no_usage),
            (
                "include_usage has it in an event of its own at the end",
                {"include_usage": True, "continuous_usage_stats": False},
                _usage_last,
            ),
            (
                "continuous_usage_stats has it in each event",
                {"include_usage": True, "continuous_usage_stats": True},
                _usage_always,
            ),
        )
    ),
    *(
        chat(
            f"{T}test_chat_completion_stream_options",
            f"stream_options without a stream is an error: {stream_options}",
            stream=False,
            stream_options=stream_options,
            status=400,
            names="stream_options",
        )
        for stream_options in ({"include_usage": True}, {"include_usage": None})
    ),
    chat(
        "test_enable_force_include_usage.py::test_chat_with_enable_force_include_usage",
        "min_tokens keeps an answer from ending",
        messages=user(script(text="ab")),
        min_tokens=5,
        max_completion_tokens=5,
        holds=lambda a: a.usage["completion_tokens"] == 5,
    ),
    Case(
        source=f"{T}test_invocations",
        name="/invocations answers a chat as its own route does",
        calls=[
            chat_call(temperature=0.0),
            Call(
                "/invocations",
                {
                    "model": MODEL,
                    "messages": SUM,
                    "max_completion_tokens": 5,
                    "temperature": 0.0,
                },
            ),
        ],
        holds=lambda own, a: own.json.keys() == a.json.keys() and own.choice == a.choice,
        servers=BOTH,
    ),
    chat(
        f"{T}test_chat_completion_n_parameter_non_streaming",
        "n of 3 has three choices in their order",
        n=3,
        temperature=0.7,
        max_completion_tokens=20,
        holds=lambda a: (
            [c["index"] for c in a.json["choices"]] == [0, 1, 2]
            and all(c["message"]["content"] for c in a.json["choices"])
        ),
    ),
    chat(
        f"{T}test_chat_completion_n_parameter_streaming",
        "events of a stream say which choice they are of",
        n=2,
        stream=True,
        temperature=0.7,
        max_completion_tokens=15,
        holds=lambda a: (
            {c["index"] for c in a.streamed if c["delta"].get("content")} == {0, 1}
            and len(a.finishes) == 2
        ),
    ),
    chat(
        f"{T}test_chat_completion_n_with_seed",
        "n goes together with a seed",
        n=2,
        seed=42,
        temperature=0.8,
        max_completion_tokens=10,
        holds=lambda a: [c["index"] for c in a.json["choices"]] == [0, 1],
    ),
    chat(
        f"{T}test_chat_completion_n_equals_1",
        "n of 1 has one choice",
        n=1,
        max_completion_tokens=10,
        holds=lambda a: [c["index"] for c in a.json["choices"]] == [0],
    ),
    chat(
        f"{T}test_extra_fields_allowed",
        "an unknown field of a message is taken",
        messages=[SUM[1] | {"extra_field": "0"}],
        temperature=0,
        seed=0,
        holds=lambda a: (
            a.content is not None and a.headers["x-vlmkit-ignored"] == "messages.extra_field"
        ),
    ),
    Case(
        source=f"{T}test_complex_message_content",
        name="content of one text part is the same as the text",
        calls=[
            chat_call(messages=user("what is 1+1?"), temperature=0),
            chat_call(messages=user([{"type": "text", "text": "what is 1+1?"}]), temperature=0),
        ],
        holds=lambda plain, parts: plain.content == parts.content != "",
        servers=BOTH,
    ),
    chat(
        f"{T}test_custom_role",
        "a role of any name is taken",
        messages=[{"role": "my-custom-role", "content": "what is 1+1?"}],
        status=400,
        names="role",
        rejected="most templates write such a message as nothing or as a user's, in silence",
    ),
    *(
        chat(
            f"{T}test_long_seed",
            f"a seed of {name} is an error",
            seed=seed,
            status=400,
            names="seed",
        )
        for name, seed in (("less than 64 bits hold", -(2**63) - 1), ("more", 2**63))
    ),
]

CHOICES = ["Python", "Java", "JavaScript", "C++", "C#", "PHP", "Rust"]
EMPLOYEE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "skills": {
            "type": "array",
            "items": {"type": "string", "maxLength": 10},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["name", "age", "skills"],
    "additionalProperties": False,
}
ADDRESS = r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
RESULT = {"type": "object", "properties": {"result": {"type": "integer", "maximum": 9}}}


def _is_employee(answer: Answer) -> bool:
    found = json.loads(answer.content)
    return (
        found.keys() == EMPLOYEE["properties"].keys()
        and isinstance(found["name"], str)
        and found["age"] in range(18, 100)
        and 1 <= len(found["skills"]) <= 3
    )


FORMS = [
    chat(
        f"{T}test_structured_outputs_choice_chat",
        "choice keeps an answer to one of its texts",
        structured_outputs={"choice": CHOICES},
        temperature=0.7,
        max_completion_tokens=12,
        holds=lambda a: a.content in CHOICES,
    ),
    chat(
        f"{T}test_structured_outputs_json_chat",
        "json keeps an answer to a schema",
        structured_outputs={"json": EMPLOYEE},
        max_completion_tokens=1000,
        holds=_is_employee,
    ),
    chat(
        f"{T}test_structured_outputs_regex_chat",
        "regex keeps an answer to a pattern",
        structured_outputs={"regex": ADDRESS},
        max_completion_tokens=20,
        holds=lambda a: re.fullmatch(ADDRESS, a.content) is not None,
    ),
    chat(
        f"{T}test_structured_outputs_type_error",
        "a regex that is an object is an error",
        structured_outputs={"regex": {"1": "Python", "2": "C++"}},
        status=400,
        names="structured_outputs.regex",
    ),
    chat(
        f"{T}test_structured_outputs_choice_chat_logprobs",
        "log-probabilities of a constrained answer are finite",
        structured_outputs={"choice": CHOICES},
        logprobs=True,
        top_logprobs=5,
        max_completion_tokens=12,
        holds=lambda a: all(
            top["logprob"] >= -9999
            for entry in a.choice["logprobs"]["content"]
            for top in entry["top_logprobs"]
        ),
    ),
    chat(
        f"{T}test_response_format_json_object",
        "json_object is one JSON object",
        messages=user('the format is {"result": 2}'),
        response_format={"type": "json_object"},
        max_completion_tokens=20,
        holds=lambda a: a.content.startswith("{"),
    ),
    chat(
        f"{T}test_response_format_json_schema",
        "json_schema keeps an answer to a schema",
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "foo_test",
                "schema": RESULT | {"required": ["result"], "additionalProperties": False},
            },
        },
        holds=lambda a: isinstance(json.loads(a.content)["result"], int),
    ),
    chat(
        f"{T}test_response_format_text",
        "text leaves an answer free",
        response_format={"type": "text"},
        max_completion_tokens=10,
        holds=lambda a: a.content is not None,
    ),
    text(
        "test_completion.py::test_invalid_json_schema",
        "a schema with a property that is a text is an error",
        structured_outputs={
            "json": {
                "type": "object",
                "properties": {"brand": {"type": "string"}, "foo": "bar"},
                "required": ["brand"],
            }
        },
        status=400,
        names="structured_outputs.json",
    ),
    text(
        "test_completion.py::test_invalid_regex",
        "a pattern that is none is an error",
        structured_outputs={"regex": "[.*"},
        stop=["\n"],
        status=400,
        names="structured_outputs.regex",
    ),
    text(
        "test_completion.py::test_invalid_grammar",
        "a grammar that is none is an error",
        structured_outputs={"grammar": 'root ::= select_statementinvalidsyntax\n\nnumber ::= "1 "'},
        status=400,
        names="structured_outputs.grammar",
    ),
    *(
        one(
            f"test_completion_error.py::{test}",
            "a json_schema without a schema is an error" + ending,
            path,
            body,
            response_format={"type": "json_schema"},
            status=400,
            names="response_format",
        )
        for test, ending, path, body in (
            ("test_json_schema_response_format_missing_schema", "", TEXT, {"prompt": "Hi"}),
            (
                "test_json_schema_response_format_missing_schema",
                " in a chat",
                CHAT,
                {"messages": SUM},
            ),
        )
    ),
    chat(
        "test_tool_choice_null.py::test_null_tool_choice_does_not_conflict_with_structured_outputs",
        "a tool_choice of null goes together with a form",
        structured_outputs={"choice": ["yes", "no"]},
        tool_choice=None,
        holds=lambda a: a.content in ("yes", "no"),
    ),
    chat(
        "test_tool_choice_null.py::test_null_tool_choice_without_tools_matches_an_absent_one",
        "a tool_choice of null without tools is none",
        tool_choice=None,
        max_completion_tokens=5,
        holds=lambda a: a.content != "",
    ),
]

C = "test_completion.py::"
ZEROS = [65, 65, 65, 65, 65]


def _columns(answer: Answer, num: int) -> bool:
    columns = answer.choice["logprobs"]
    return (
        len(columns["token_logprobs"]) == len(columns["tokens"]) > 0
        and columns["top_logprobs"] is not None
        and all(num <= len(top) <= num + 1 for top in columns["top_logprobs"])
    )


def _is_echo(answer: Answer, prompt: str, num_prompt_tokens: int) -> bool:
    columns = answer.choice["logprobs"]
    return (
        answer.text_of_choice.startswith(prompt)
        and len(columns["tokens"]) > num_prompt_tokens
        and len(columns["text_offset"]) == len(columns["tokens"])
        and columns["token_logprobs"][0] is None
        and (columns["top_logprobs"] is None or columns["top_logprobs"][0] is None)
    )


TEXTS = [
    text(
        f"{C}test_single_completion",
        "usage counts prompt, answer and cached tokens",
        prompt="The meaning of life is",
        temperature=0.0,
        holds=lambda a: (
            len(a.json["choices"]) == 1
            and a.choice["finish_reason"] == "length"
            and a.usage["completion_tokens"] == 5
            and _adds_up(a.usage)
            and isinstance(a.usage["prompt_tokens_details"]["cached_tokens"], int)
        ),
    ),
    text(
        f"{C}test_single_completion",
        "a prompt may be token ids",
        prompt=ZEROS,
        temperature=0.0,
        holds=lambda a: a.usage["prompt_tokens"] == 5 and a.text_of_choice != "",
    ),
    *(
        text(
            f"{C}test_completion_truncation_side_controls_prompt_truncation",
            f"truncate_prompt_tokens leaves out tokens on the {side} side",
            prompt=list(range(65, 73)),
            truncate_prompt_tokens=4,
            truncation_side=side,
            status=400,
            names="truncate_prompt_tokens",
            rejected="an answer to half of a prompt looks like one to all of it; `/tokenize` gives "
            "the tokens to cut",
        )
        for side in ("left", "right")
    ),
    text(
        f"{C}test_no_logprobs",
        "logprobs of null has none",
        prompt=ZEROS,
        logprobs=None,
        holds=lambda a: a.choice["logprobs"] is None,
    ),
    text(
        f"{C}test_zero_logprobs",
        "logprobs of 0 has each token's own",
        prompt=ZEROS,
        logprobs=0,
        holds=lambda a: len(a.choice["logprobs"]["token_logprobs"]) == 5,
    ),
    text(
        f"{C}test_zero_logprobs",
        "and in top_logprobs the chosen token alone",
        prompt=ZEROS,
        logprobs=0,
        holds=lambda a: a.choice["logprobs"]["top_logprobs"] is None,
        otherwise="`top_logprobs` is null, as in OpenAI's API; `token_logprobs` has the same",
    ),
    text(
        f"{C}test_some_logprobs",
        "logprobs of 5 has 5 likeliest of each token, and the chosen one",
        prompt=ZEROS,
        logprobs=5,
        holds=lambda a: _columns(a, 5),
    ),
    *(
        text(
            f"{C}test_too_many_completion_logprobs",
            f"logprobs of {num} is an error{ending}",
            prompt=ZEROS,
            logprobs=num,
            stream=stream,
            status=400,
            names="logprobs",
        )
        for num, stream, ending in ((21, False, ""), (30, True, " before a stream begins"))
    ),
    *(
        text(
            f"{C}test_prompt_logprobs_completion",
            f"prompt_logprobs of {num} has those of each prompt",
            prompt=["A robot may not injure", "My name is"],
            prompt_logprobs=num,
            holds=lambda a: all(len(c["prompt_logprobs"]) > 0 for c in a.json["choices"]),
        )
        for num in (0, 1)
    ),
    text(
        f"{C}test_prompt_logprobs_completion",
        "prompt_logprobs of -1 is an error",
        prompt_logprobs=-1,
        status=400,
        names="prompt_logprobs",
    ),
    Case(
        source=f"{C}test_completion_streaming",
        name="a stream has the text of a whole answer, and one finish reason",
        calls=[text_call(), text_call(stream=True)],
        holds=lambda whole, stream: (
            stream.content == whole.content != "" and stream.finishes == ["length"]
        ),
        servers=BOTH,
    ),
    text(
        f"{C}test_parallel_no_streaming",
        "n of 3 has three choices in their order",
        n=3,
        max_tokens=50,
        temperature=1.0,
        logprobs=0,
        seed=42,
        holds=lambda a: (
            [c["index"] for c in a.json["choices"]] == [0, 1, 2]
            and all(c["finish_reason"] for c in a.json["choices"])
        ),
    ),
    text(
        f"{C}test_parallel_no_streaming",
        "at temperature 1 they differ",
        n=3,
        max_tokens=50,
        temperature=1.0,
        seed=42,
        holds=lambda a: len({c["text"] for c in a.json["choices"]}) > 1,
        servers=("demo",),
    ),
    text(
        f"{C}test_parallel_streaming",
        "events of a stream say which choice they are of",
        n=3,
        max_tokens=50,
        temperature=1.0,
        stream=True,
        seed=42,
        holds=lambda a: (
            {c["index"] for c in a.streamed} == {0, 1, 2}
            and len(a.finishes) == 3
            and all(sum(c["index"] == index for c in a.streamed) <= 51 for index in range(3))
        ),
    ),
    *(
        text(
            f"{C}test_completion_stream_options",
            name,
            stream=True,
            stream_options=stream_options,
            holds=holds,
        )
        for name, stream_options, holds in (
            (
                "no usage unless include_usage asks for it",
                {"include_usage": False, "continuous_usage_stats": False},
                _no_usage,
            ),
            (
                "continuous_usage_stats alone asks for nothing",
                {"include_usage": False, "continuous_usage_stats": True},
                _no_usage,
            ),
            (
                "include_usage has it at the end",
                {"include_usage": True, "continuous_usage_stats": False},
                _usage_last,
            ),
            (
                "both have it in each event",
                {"include_usage": True, "continuous_usage_stats": True},
                _usage_always,
            ),
            ("empty options ask for nothing", {}, _no_usage),
        )
    ),
    *(
        text(
            f"{C}test_completion_stream_options",
            f"stream_options without a stream is an error: {field}",
            stream=False,
            stream_options={field: True},
            status=400,
            names="stream_options",
        )
        for field in ("include_usage", "continuous_usage_stats")
    ),
    *(
        text(
            f"{C}test_batch_completions",
            f"a list of {name} has an answer for each",
            prompt=[prompt, prompt],
            temperature=0.0,
            holds=lambda a: (
                [c["index"] for c in a.json["choices"]] == [0, 1]
                and a.json["choices"][0]["text"] == a.json["choices"][1]["text"]
            ),
        )
        for name, prompt in (("texts", "Hello, my name is"), ("token ids", ZEROS))
    ),
    text(
        f"{C}test_batch_completions",
        "in a stream, too",
        prompt=["Hello, my name is"] * 2,
        temperature=0.0,
        stream=True,
        holds=lambda a: (
            all(len(event["choices"]) == 1 for event in a.events)
            and len(
                {"".join(c["text"] for c in a.streamed if c["index"] == index) for index in (0, 1)}
            )
            == 1
        ),
    ),
    text(
        f"{C}test_batch_completions",
        "use_beam_search looks for the likeliest answers",
        n=2,
        use_beam_search=True,
        status=400,
        names="use_beam_search",
        rejected="beam search is not available; `n` samples, and log-probabilities rank",
    ),
    *(
        text(
            f"{C}test_echo_logprob_completion",
            f"echo has the prompt of {name} before the answer, with {num} log-probabilities",
            prompt=prompt,
            echo=True,
            logprobs=num,
            temperature=0.0,
            servers=servers,
            holds=lambda a, starts=starts: _is_echo(a, starts, 1),
        )
        for num in (1, 0)
        for name, prompt, starts, servers in (
            ("text", "Hello, my name is", "Hello, my name is", BOTH),
            ("token ids", ZEROS, "AAAAA", ("mock",)),
        )
    ),
    *(
        text(
            f"test_prompt_validation.py::{test}",
            f"{name} is an error",
            prompt=prompt,
            status=400,
            names="prompt",
        )
        for test, name, prompt in (
            ("test_empty_prompt", "a prompt of null", None),
            ("test_out_of_vocab_token_ids", "a token that is not in the vocabulary", [999999]),
        )
    ),
    *(
        text(
            f"test_completion_error.py::{test}",
            f"a token below 0 {where} is an error",
            prompt=prompt,
            status=400,
            names="prompt",
        )
        for test, where, prompt in (
            ("test_negative_prompt_token_ids_flat", "in a prompt", [-1]),
            ("test_negative_prompt_token_ids_nested", "in a list of prompts", [[-1]]),
        )
    ),
    text(
        "test_empty_prompt_list.py::test_empty_prompt_list_rejected",
        "an empty list of prompts is an error",
        prompt=[],
        status=400,
        names="prompt",
    ),
    text(
        "test_empty_prompt_list.py::test_nonempty_prompt_list_ok",
        "a list of one prompt is taken",
        prompt=["hello"],
        holds=lambda a: len(a.json["choices"]) == 1,
    ),
    text(
        "test_completion_with_prompt_embeds.py::test_completions_with_prompt_embeds",
        "a prompt may be vectors",
        prompt_embeds="AAAA",
        status=400,
        names="prompt_embeds",
        rejected="a tensor of a client is not unpickled, and could say what no text can",
    ),
    Case(
        source="test_completion_text_offset.py::"
        "test_stream_text_offset_matches_non_stream_with_stop_holdback",
        name="a stream's text_offset is that of a whole answer, stop strings or not",
        calls=[text_call(logprobs=0, stop=["\n\n"], stream=stream) for stream in (False, True)],
        holds=lambda whole, stream: (
            [
                o
                for c in stream.streamed
                for o in (c["logprobs"] or {"text_offset": []})["text_offset"]
            ]
            == whole.choice["logprobs"]["text_offset"]
        ),
        servers=BOTH,
    ),
    text(
        "test_token_in_token_out.py::test_token_in_token_out_and_logprobs",
        "return_token_ids has the ids of prompt and answer",
        prompt=ZEROS,
        echo=True,
        return_token_ids=True,
        holds=lambda a: (
            a.choice["prompt_token_ids"] == ZEROS and 0 < len(a.choice["token_ids"]) <= 5
        ),
    ),
    text(
        "test_return_token_ids.py::test_basic_completion_with_emoji",
        "return_token_ids of false has none",
        prompt="I love coding 🚀",
        logprobs=1,
        return_token_ids=False,
        holds=lambda a: (
            a.choice.get("token_ids") is None and a.choice.get("prompt_token_ids") is None
        ),
    ),
    text(
        "test_return_token_ids.py::test_comparison_with_prompt_logprobs_and_logprobs",
        "return_tokens_as_token_ids writes tokens as token_id:12",
        logprobs=1,
        return_tokens_as_token_ids=True,
        status=400,
        names="return_tokens_as_token_ids",
        rejected="`return_token_ids` has the ids beside the tokens",
    ),
    Case(
        source="test_return_token_ids.py::test_chat_completion_with_emoji_and_token_ids",
        name="a stream's first event alone has the prompt's ids, and all events the answer's",
        calls=[
            chat_call(messages=user("I love cats 🐱"), return_token_ids=True, stream=stream)
            for stream in (False, True)
        ],
        holds=lambda whole, stream: (
            stream.events[0]["prompt_token_ids"] == whole.json["prompt_token_ids"]
            and not any("prompt_token_ids" in event for event in stream.events[1:])
            and [t for c in stream.streamed for t in c.get("token_ids") or []]
            == whole.choice["token_ids"]
        ),
        servers=BOTH,
    ),
]


SAMPLING = [
    Case(
        source="test_chat_logit_bias_validation.py::test_chat_logit_bias_valid",
        name="a bias of the last token of the vocabulary is taken",
        calls=[
            get("/tokenizer_info"),
            lambda answers: chat_call(logit_bias={str(answers[0].json["vocab_size"] - 1): 1.0}),
        ],
        holds=lambda _, a: a.content is not None,
        servers=BOTH,
    ),
    chat(
        "test_chat_logit_bias_validation.py::test_chat_logit_bias_invalid",
        "a bias of a token that does not exist is an error",
        logit_bias={"999999": 1.0},
        status=400,
        names="logit_bias",
    ),
    chat(
        "test_chat_logit_bias_validation.py::test_chat_logit_bias_non_integer_key",
        "a bias of a text is an error",
        logit_bias={"not_a_token_id": 50},
        status=400,
        names="logit_bias",
    ),
    chat(
        "test_chat_logit_bias_validation.py::test_chat_logit_bias_non_numeric_value",
        "a bias that is a text is an error",
        logit_bias={"1": "not_a_number"},
        status=400,
        names="logit_bias",
    ),
    Case(
        source="test_chat_stop_token_ids_validation.py::test_chat_stop_token_ids_valid",
        name="the last token of the vocabulary may end an answer",
        calls=[
            get("/tokenizer_info"),
            lambda answers: chat_call(stop_token_ids=[answers[0].json["vocab_size"] - 1]),
        ],
        holds=lambda _, a: a.content is not None,
        servers=BOTH,
    ),
    *(
        chat(
            f"test_chat_stop_token_ids_validation.py::{test}",
            f"a token {name} is an error",
            stop_token_ids=[token],
            status=400,
            names="stop_token_ids",
        )
        for test, name, token in (
            ("test_chat_stop_token_ids_out_of_vocab", "that does not exist", 999999),
            ("test_chat_stop_token_ids_negative", "below 0", -1),
        )
    ),
    *(
        one(
            f"test_thinking_token_budget_validation.py::{test}",
            f"a thinking budget of {value} is an error in {api}",
            path,
            body,
            thinking_token_budget=value,
            status=400,
            names="thinking_token_budget",
        )
        for api, path, body, test, values in (
            (
                "a chat",
                CHAT,
                {"messages": SUM},
                "test_chat_completion_request_rejects_invalid_thinking_token_budget",
                (-2, 0.6, 10.5),
            ),
            (
                "a completion",
                TEXT,
                {"prompt": "hello"},
                "test_completion_request_rejects_invalid_thinking_token_budget",
                (-2, 3.14),
            ),
        )
        for value in values
    ),
    chat(
        "test_thinking_token_budget_validation.py::"
        "test_chat_completion_request_accepts_minus_one_as_unlimited",
        "a thinking budget of -1 is none",
        thinking_token_budget=-1,
        max_completion_tokens=5,
        holds=lambda a: a.content is not None,
    ),
    text(
        "test_thinking_token_budget_validation.py::"
        "test_completion_request_accepts_minus_one_as_unlimited",
        "so it is in a completion",
        thinking_token_budget=-1,
        holds=lambda a: a.text_of_choice != "",
    ),
    chat(
        "test_thinking_token_budget_validation.py::"
        "test_chat_completion_request_accepts_valid_thinking_token_budget",
        "a thinking budget of 10 is taken",
        thinking_token_budget=10,
        max_completion_tokens=5,
        holds=lambda a: a.content is not None,
    ),
    text(
        "test_thinking_token_budget_validation.py::"
        "test_completion_request_accepts_valid_thinking_token_budget",
        "a thinking budget of 5 is taken in a completion",
        thinking_token_budget=5,
        holds=lambda a: a.text_of_choice != "",
    ),
    chat(
        "test_thinking_token_budget.py::test_thinking_token_budget_limits_reasoning",
        "reasoning ends after its budget, and the answer follows",
        messages=user(script(reasoning="one and one and one", text="3")),
        thinking_token_budget=5,
        holds=lambda a: a.choice["message"]["reasoning"] == "one a" and a.content == "3",
        servers=("mock",),
    ),
    *(
        chat(
            f"test_include_reasoning.py::{test}",
            f"{name}{ending}",
            messages=user(script(reasoning="hm, one and one", text="2")),
            stream=stream,
            servers=("mock",),
            holds=lambda a, stream=stream: (
                (
                    "".join(c["delta"].get("reasoning") or "" for c in a.streamed)
                    if stream
                    else a.choice["message"]["reasoning"]
                )
                == "hm, one and one"
                and a.content == "2"
            ),
            **fields,
        )
        for test, name, ending, stream, fields in (
            (
                "test_include_reasoning_true_non_streaming",
                "include_reasoning shows reasoning",
                "",
                False,
                {"include_reasoning": True},
            ),
            (
                "test_include_reasoning_true_streaming",
                "include_reasoning shows reasoning",
                " in a stream",
                True,
                {"include_reasoning": True},
            ),
            ("test_default_includes_reasoning", "reasoning is shown", "", False, {}),
        )
    ),
    chat(
        "test_include_reasoning.py::test_include_reasoning_false_non_streaming",
        "include_reasoning of false leaves it out",
        include_reasoning=False,
        status=400,
        names="include_reasoning",
        rejected="reasoning is apart from `content`, so a client leaves it unread; "
        "`chat_template_kwargs` turns it off",
    ),
    chat(
        "test_include_reasoning.py::test_reasoning_tokens_in_usage",
        "usage counts the tokens of reasoning",
        messages=user(script(reasoning="hm", text="2")),
        servers=("mock",),
        holds=lambda a: a.usage["completion_tokens_details"]["reasoning_tokens"] > 0,
    ),
    Case(
        source="test_thinking_token_budget.py::"
        "test_streaming_with_thinking_disabled_stays_in_content",
        name="with enable_thinking of false, a stream has content alone",
        calls=[
            chat_call(chat_template_kwargs={"enable_thinking": False}, temperature=0, stream=stream)
            for stream in (False, True)
        ],
        holds=lambda whole, stream: (
            whole.content == stream.content != ""
            and not whole.choice["message"].get("reasoning")
            and not any(c["delta"].get("reasoning") for c in stream.streamed)
        ),
        servers=BOTH,
    ),
    *(
        chat(
            "test_chat_echo.py::test_chat_session_with_echo_and_continue_final_message",
            name,
            messages=[
                *user("tell me a common saying"),
                {"role": "assistant", "content": "An apple a day, keeps"},
            ],
            continue_final_message=True,
            add_generation_prompt=False,
            max_tokens=5,
            **options,
        )
        for name, options in (
            (
                "continue_final_message goes on with the last message",
                {"echo": False, "holds": lambda a: "An apple a day, keeps" not in a.content},
            ),
            (
                "echo puts that message before the answer",
                {
                    "echo": True,
                    "status": 400,
                    "names": "echo",
                    "rejected": "the client has that message; `/v1/completions` takes `echo`",
                },
            ),
        )
    ),
]

WEATHER_PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "default": "Vienna"},
        "country": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "options": {"$ref": "#/$defs/WeatherOptions", "description": "Optional"},
    },
    "required": ["country", "unit"],
    "$defs": {
        "WeatherOptions": {
            "title": "WeatherOptions",
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "include_forecast": {"type": "boolean", "default": False},
                "language": {"type": "string", "enum": ["zh-CN", "en-US"]},
            },
        }
    },
}
FORECAST_PARAMETERS = {
    "type": "object",
    "properties": {"country": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["country", "days"],
}
NAMES = ("get_current_weather", "get_forecast")
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in zip(NAMES, (WEATHER_PARAMETERS, FORECAST_PARAMETERS), strict=True)
]
FLAT_TOOLS = [{"type": "function"} | tool["function"] for tool in TOOLS]
VIENNA = {"country": "Austria", "unit": "celsius"}
CALL = script(calls=[{"name": "get_current_weather", "arguments": VIENNA}])
NAMED = {"type": "function", "function": {"name": "get_current_weather"}}
TIME_TOOL = {
    "type": "function",
    "function": {
        "name": "get_current_time",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
F = "test_completion_with_function_calling.py::"


def _time_asked(arguments: str) -> list[dict[str, Any]]:
    """Return a conversation in which a tool without parameters was called."""
    function = {"name": "get_current_time", "arguments": arguments}
    called = {"id": "call_1", "type": "function", "function": function}
    return [
        *user("What time is it now?"),
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]


MOCK: tuple[Server, ...] = ("mock",)
CALLS = [
    *(
        chat(
            f"{F}test_function_tool_use",
            f"tool_choice of {name} has a call{ending}",
            messages=user(CALL),
            tools=TOOLS,
            tool_choice=tool_choice,
            stream=stream,
            servers=MOCK,
            holds=lambda a: a.calls == [("get_current_weather", VIENNA)],
        )
        for name, tool_choice in (("auto", "auto"), ("required", "required"), ("a name", NAMED))
        for stream, ending in ((False, ""), (True, ", streamed"))
    ),
    chat(
        f"{F}test_function_tool_use",
        "reasoning stands before a call",
        messages=user(
            script(reasoning="Berlin, then.", calls=[{"name": NAMES[0], "arguments": VIENNA}])
        ),
        tools=TOOLS,
        servers=MOCK,
        holds=lambda a: len(a.calls) == 1 and a.choice["message"]["reasoning"] == "Berlin, then.",
    ),
    chat(
        f"{F}test_no_args_tool_call",
        "a tool without parameters is called with an empty object",
        messages=user(script(calls=[{"name": "get_current_time", "arguments": {}}])),
        tools=[TIME_TOOL],
        tool_choice="auto",
        servers=MOCK,
        holds=lambda a: a.calls == [("get_current_time", {})],
    ),
    *(
        chat(
            f"{F}test_no_args_tool_call",
            f"such a call is sent back with arguments of {name}",
            messages=_time_asked(arguments),
            max_completion_tokens=128,
            servers=MOCK,
            holds=lambda a: a.content.strip() != "",
        )
        for name, arguments in (("an empty object", "{}"), ("an empty text", ""))
    ),
    *(
        chat(
            f"{F}test_named_tool_use",
            f"a named tool is called with arguments of its schema{ending}",
            messages=user(
                script(
                    calls=[{"name": "f", "arguments": {"name": "Ada", "age": 36, "skills": ["x"]}}]
                )
            ),
            tools=[{"type": "function", "function": {"name": "f", "parameters": EMPLOYEE}}],
            tool_choice={"type": "function", "function": {"name": "f"}},
            temperature=0.0,
            max_completion_tokens=1000,
            stream=stream,
            servers=MOCK,
            holds=lambda a: [name for name, _ in a.calls] == ["f"] and a.calls[0][1]["age"] == 36,
        )
        for stream, ending in ((False, ""), (True, ", streamed"))
    ),
    *(
        chat(
            f"{F}test_inconsistent_tool_choice_and_tools",
            f"{name} is an error",
            status=400,
            names="tool_choice",
            servers=MOCK,
            **fields,
        )
        for name, fields in (
            (
                "a named tool without tools",
                {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            ),
            (
                "a named tool that is not among the tools",
                {
                    "tools": TOOLS,
                    "tool_choice": {"type": "function", "function": {"name": "undefined"}},
                },
            ),
        )
    ),
    chat(
        f"{F}test_inconsistent_tool_choice_and_tools",
        "an empty tool_choice is an error",
        tools=TOOLS,
        tool_choice={},
        max_tokens=5,
        servers=MOCK,
        otherwise="an empty object says nothing, as null does, so the choice is auto",
    ),
    *(
        chat(
            f"{F}test_max_tokens_with_tool_choice_required",
            f"an answer that ends before its call has neither call nor text: {name}",
            messages=user(CALL),
            tools=TOOLS,
            tool_choice=tool_choice,
            max_completion_tokens=1,
            servers=MOCK,
            holds=lambda a: (
                a.choice["finish_reason"] == "length"
                and not a.choice["message"].get("tool_calls")
                and a.content == ""
            ),
        )
        for name, tool_choice in (("required", "required"), ("named", NAMED))
    ),
    *(
        chat(
            f"test_tool_choice_null.py::{test}",
            name,
            messages=user(CALL),
            tools=TOOLS,
            servers=MOCK,
            **fields,
        )
        for test, name, fields in (
            (
                "test_null_tool_choice_defaults_to_auto_like_an_absent_one",
                "a tool_choice of null is auto",
                {
                    "tool_choice": None,
                    "holds": lambda a: a.calls == [("get_current_weather", VIENNA)],
                },
            ),
            (
                "test_explicit_none_tool_choice_is_untouched",
                "a tool_choice of none has no call",
                {"tool_choice": "none", "holds": lambda a: not a.calls},
            ),
            (
                "test_invalid_tool_choice_is_still_rejected",
                "an unknown tool_choice is an error",
                {"tool_choice": "bogus", "status": 400, "names": "tool_choice"},
            ),
        )
    ),
    chat(
        "test_tool_choice_null.py::test_invalid_tool_choice_is_still_rejected",
        "a tool_choice of auto without tools is an error",
        tool_choice="auto",
        max_tokens=5,
        otherwise="auto allows a call and asks for none, so nothing changes without tools",
    ),
]

V = "test_vision.py::"
IMAGES = [
    *(
        chat(
            f"{V}test_single_chat_session_image_base64encoded",
            f"{name} is shown",
            messages=shown(data_url(picture(mode, kind), media_type)),
            logprobs=True,
            top_logprobs=5,
            temperature=0.0,
            max_completion_tokens=3,
            holds=lambda a: (
                a.choice["finish_reason"] == "length"
                and a.usage["prompt_tokens_details"]["image_tokens"] > 0
                and a.content != ""
            ),
        )
        for name, mode, kind, media_type in (
            ("a JPEG file", "RGB", "JPEG", "image/jpeg"),
            ("a grey PNG file", "L", "PNG", "image/png"),
            ("a PNG file with a palette", "P", "PNG", "image/png"),
            ("a transparent PNG file", "RGBA", "PNG", "image/png"),
            ("a WebP file", "RGB", "WEBP", "image/webp"),
        )
    ),
    chat(
        f"{V}test_error_on_invalid_image_url_type",
        "an image_url that is a text is an error",
        messages=user([{"type": "image_url", "image_url": PNG}, {"type": "text", "text": "hm"}]),
        max_completion_tokens=3,
        holds=lambda a: a.usage["prompt_tokens_details"]["image_tokens"] > 0,
        otherwise="it is taken as the URL, as other servers do",
    ),
    chat(
        f"{V}test_single_chat_session_image_beamsearch",
        "use_beam_search looks for the likeliest answers",
        messages=shown(PNG),
        n=2,
        use_beam_search=True,
        status=400,
        names="use_beam_search",
        rejected="beam search is not available; `n` samples, and log-probabilities rank",
    ),
    Case(
        source=f"{V}test_chat_streaming_image",
        name="a stream about an image has the text of a whole answer",
        calls=[
            chat_call(messages=shown(PNG), temperature=0.0, stream=stream)
            for stream in (False, True)
        ],
        holds=lambda whole, stream: (
            stream.content == whole.content != ""
            and stream.finishes == [whole.choice["finish_reason"]]
        ),
        servers=BOTH,
    ),
    chat(
        f"{V}test_multi_image_input",
        "several images are shown",
        messages=user(
            [
                *({"type": "image_url", "image_url": {"url": PNG}} for _ in range(2)),
                {"type": "text", "text": "What's in these?"},
            ]
        ),
        max_completion_tokens=5,
        holds=lambda a: len(a.usage["prompt_tokens_details"]["image_tokens_each"]) == 2,
    ),
    chat(
        f"{V}test_multi_image_input",
        "more images than the operator allows are an error",
        messages=user([{"type": "image_url", "image_url": {"url": PNG}}] * 17),
        status=400,
        names="image",
    ),
    chat(
        f"{V}test_completions_with_image_with_uuid",
        "an image may have a uuid",
        messages=user(
            [
                {"type": "text", "text": "Describe this image."},
                {"type": "image_url", "image_url": {"url": PNG}, "uuid": "picture-1"},
            ]
        ),
        max_completion_tokens=5,
        holds=lambda a: a.content != "",
    ),
    chat(
        f"{V}test_completions_with_image_with_uuid",
        "a uuid alone shows an image that was sent before",
        messages=user(
            [
                {"type": "text", "text": "Describe this image."},
                {"type": "image_url", "image_url": {}, "uuid": "picture-1"},
            ]
        ),
        status=400,
        names="image_url",
        rejected="an id that a client chooses could be another tenant's; `/v1/files` keeps a "
        "picture for its owner, whose `file_id` shows it",
    ),
    chat(
        f"{V}test_completions_with_empty_image_with_uuid_without_cache_hit",
        "a uuid that was never sent is an error",
        messages=user([{"type": "image_url", "image_url": {}, "uuid": "not_seen"}]),
        status=400,
        names="image_url",
    ),
    chat(
        f"{V}test_completions_with_image_with_incorrect_uuid_format",
        "unknown fields beside an image are taken",
        messages=user(
            [
                {
                    "type": "image_url",
                    "image_url": {"url": PNG, "incorrect_uuid_key": "x"},
                    "also_incorrect_uuid_key": "x",
                },
            ]
        ),
        max_completion_tokens=5,
        holds=lambda a: "incorrect_uuid_key" in a.headers["x-vlmkit-ignored"],
    ),
]

K = "test_tokenization.py::"
TURNS = [
    *user("Hi there!"),
    {"role": "assistant", "content": "Nice to meet you!"},
    *user("Can I ask a question? vllm1"),
]
GET_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    },
}


def _counted(answer: Answer) -> bool:
    return (
        answer.json["count"] == len(answer.json["tokens"]) > 0
        and answer.json["max_model_len"] >= 1024
        and answer.json["token_strs"] is None
    )


def tokenized(test: str, name: str, **options: Any) -> Case:
    """Return a case of one text or conversation to tokenize."""
    given = {} if "status" in options else {"holds": _counted}
    return one(f"{K}{test}", name, "/tokenize", {}, **given | options)


TOKENS = [
    *(
        tokenized(
            "test_tokenize_completions",
            f"add_special_tokens of {value} is taken",
            prompt="vllm1 This is a test prompt.",
            add_special_tokens=value,
        )
        for value in (False, True)
    ),
    *(
        tokenized("test_tokenize_chat", name, messages=messages, **fields)
        for name, messages, fields in (
            ("a conversation is tokenized", TURNS, {"add_generation_prompt": True}),
            ("without what begins an answer", TURNS, {"add_generation_prompt": False}),
            (
                "with a last message that goes on",
                [*TURNS, {"role": "assistant", "content": "Sure,"}],
                {"add_generation_prompt": False, "continue_final_message": True},
            ),
        )
    ),
    tokenized(
        "test_tokenize_chat",
        "special tokens are put around a templated conversation once more",
        messages=TURNS,
        add_special_tokens=True,
        status=400,
        names="add_special_tokens",
        rejected="the template writes special tokens; a second beginning is never what a model "
        "was trained on",
    ),
    tokenized(
        "test_tokenize_chat_with_tools",
        "a conversation is tokenized with its tools",
        messages=user("What's the weather like in Paris today?"),
        tools=[GET_WEATHER],
        servers=MOCK,
    ),
    tokenized(
        "test_tokenize_with_return_token_strs",
        "return_token_strs has the text of each token",
        prompt="This is a token_strs test prompt! vllm1",
        return_token_strs=True,
        holds=lambda a: len(a.json["token_strs"]) == len(a.json["tokens"]) == a.json["count"],
    ),
    Case(
        source=f"{K}test_detokenize",
        name="/detokenize has the text of tokens",
        calls=[
            Call(
                "/tokenize",
                {"model": MODEL, "prompt": "This is a test prompt.", "add_special_tokens": False},
            ),
            lambda answers: Call(
                "/detokenize", {"model": MODEL, "tokens": answers[0].json["tokens"]}
            ),
        ],
        holds=lambda _, a: a.json["prompt"] == "This is a test prompt.",
        servers=BOTH,
    ),
    Case(
        source=f"{K}test_tokenizer_info_basic",
        name="/tokenizer_info names the class of the tokenizer",
        calls=[get("/tokenizer_info")],
        holds=lambda a: bool(a.json["tokenizer_class"]),
        servers=BOTH,
    ),
    Case(
        source=f"{K}test_tokenizer_info_schema",
        name="its fields have the types that clients expect",
        calls=[get("/tokenizer_info")],
        holds=lambda a: all(
            a.json.get(name) is None or isinstance(a.json[name], kind)
            for name, kind in (
                ("bos_token", str),
                ("eos_token", str),
                ("pad_token", str),
                ("chat_template", str),
                ("model_max_length", int),
            )
        ),
        servers=BOTH,
    ),
    Case(
        source=f"{K}test_tokenizer_info_consistency_with_tokenize",
        name="its length is no less than that of /tokenize",
        calls=[
            get("/tokenizer_info"),
            Call("/tokenize", {"model": MODEL, "prompt": "Hello world!"}),
        ],
        holds=lambda info, a: info.json["model_max_length"] >= a.json["max_model_len"],
        servers=BOTH,
    ),
]

NO_CLASSES = "no family that is served here has classes; `tools` or a `choice` make an answer one"
E = "test_embedding.py::"
MEAL = ["The chef prepared a delicious meal."]
CATS = [
    *user("The cat sat on the mat."),
    {"role": "assistant", "content": "A feline was resting on a rug."},
    *user("Stars twinkle brightly in the night sky."),
]


def vectors(test: str, name: str, **options: Any) -> Case:
    """Return a case of one request for vectors."""
    return one(f"{E}{test}", name, "/v1/embeddings", {"encoding_format": "float"}, **options)


def _length(answer: Answer) -> float:
    """Return the length of an answer's first vector."""
    return math.hypot(*answer.json["data"][0]["embedding"])


def _same_vectors(one: Answer, two: Answer) -> bool:
    """Whether both answers have the same vector, but for rounding.

    The second finds most of its prompt in the cache, and so computes other products.
    """
    a, b = (answer.json["data"][0]["embedding"] for answer in (one, two))
    return len(a) == len(b) and all(abs(x - y) < 1e-3 for x, y in zip(a, b, strict=True))


EMBEDDINGS = [
    vectors(
        "test_single_embedding",
        "a text has a vector",
        input=MEAL,
        holds=lambda a: len(a.json["data"]) == 1 and a.usage["total_tokens"] > 0,
    ),
    vectors(
        "test_single_embedding",
        "token ids have a vector, and are counted as they are",
        input=[1, 1, 1, 1, 1],
        holds=lambda a: a.usage["prompt_tokens"] == a.usage["total_tokens"] == 5,
    ),
    vectors(
        "test_batch_embedding",
        "texts have a vector each",
        input=["The cat sat on the mat.", "A feline was resting.", "Stars twinkle."],
        holds=lambda a: [item["index"] for item in a.json["data"]] == [0, 1, 2],
    ),
    vectors(
        "test_batch_embedding",
        "lists of token ids have a vector each",
        input=[[4, 5, 7, 9, 20], [15, 29, 99], [24] * 5, [25, 32, 64, 77]],
        holds=lambda a: len(a.json["data"]) == 4 and a.usage["prompt_tokens"] == 17,
    ),
    vectors(
        "test_conversation_embedding",
        "a conversation has a vector",
        messages=CATS,
        holds=lambda a: len(a.json["data"]) == 1,
    ),
    *(
        vectors(
            test,
            name,
            input=["Como o Brasil pode fomentar o desenvolvimento?"],
            truncate_prompt_tokens=length,
            status=400,
            names="truncate_prompt_tokens",
            **options,
        )
        for test, name, length, options in (
            (
                "test_single_embedding_truncation",
                "truncate_prompt_tokens leaves out tokens",
                10,
                {
                    "rejected": "a vector of half a text looks like one of all of it; `/tokenize` "
                    "gives the tokens to cut"
                },
            ),
            (
                "test_single_embedding_truncation_invalid",
                "a truncation to more than the context is an error",
                999_999,
                {},
            ),
        )
    ),
    *(
        Case(
            source=f"{E}{test}",
            name=f"/invocations answers {name} as its own route does",
            calls=[
                Call(path, {"model": MODEL, "encoding_format": "float"} | fields)
                for path in ("/v1/embeddings", "/invocations")
            ],
            holds=_same_vectors,
            servers=BOTH,
        )
        for test, name, fields in (("test_invocations", "a text", {"input": MEAL}),)
    ),
    Case(
        source=f"{E}test_invocations_conversation",
        name="/invocations answers a conversation with its vector",
        calls=[
            Call("/invocations", {"model": MODEL, "messages": CATS, "encoding_format": "float"})
        ],
        holds=lambda a: a.json["object"] == "chat.completion",
        otherwise="a body with `messages` is a chat here, since the model that is served answers",
        servers=BOTH,
    ),
    *(
        vectors(
            "test_normalize",
            f"normalize of {value} is taken",
            input=MEAL,
            normalize=value,
            **verdict,
        )
        for value, verdict in (
            (True, {"holds": lambda a: abs(_length(a) - 1) < 1e-4}),
            (
                False,
                {
                    "status": 400,
                    "names": "normalize",
                    "rejected": "vectors are scaled as the checkpoint says, to length 1 where it "
                    "says nothing",
                },
            ),
        )
    ),
    *(
        Case(
            source=f"test_online_rerank.py::{test}",
            name=name,
            calls=[
                Call(
                    path, {"model": MODEL, "query": "What is the capital?", "documents": documents}
                )
            ],
            holds=lambda a: (
                sorted(each["index"] for each in a.json["results"]) == [0, 1]
                and a.json["results"][0]["relevance_score"]
                >= a.json["results"][1]["relevance_score"]
                and all("text" in each["document"] for each in a.json["results"])
            ),
            servers=BOTH,
        )
        for test, name, path, documents in (
            ("test_rerank_texts", "documents are ranked, the best first", "/rerank", ["a", "b"]),
            (
                "test_rerank_texts",
                "documents may be contents of parts",
                "/v2/rerank",
                ["a", {"content": [{"type": "text", "text": "b"}]}],
            ),
        )
    ),
    Case(
        source="test_online_rerank.py::test_rerank_top_n",
        name="top_n bounds how many documents are returned",
        calls=[
            Call(
                "/v1/rerank",
                {"model": MODEL, "query": "x", "documents": ["a", "b", "c"], "top_n": 2},
            )
        ],
        holds=lambda a: len(a.json["results"]) == 2,
        servers=BOTH,
    ),
    *(
        Case(
            source=f"{source}",
            name=name,
            calls=[Call(path, {"model": MODEL} | body)],
            holds=lambda a, num=num: (
                [each["index"] for each in a.json["data"]] == list(range(num))
                and a.usage["prompt_tokens"] == a.usage["total_tokens"]
            ),
            servers=BOTH,
        )
        for source, name, path, body, num in (
            (
                "test_online_score.py::test_text_1_str_text_2_str",
                "two texts have a score",
                "/score",
                {"text_1": "What is the capital?", "text_2": "Paris"},
                1,
            ),
            (
                "test_online_score.py::test_text_1_str_text_2_list",
                "one text is scored with each of several",
                "/v1/score",
                {"text_1": "What is the capital?", "text_2": ["Paris", "Rome"]},
                2,
            ),
            (
                "test_online_score.py::test_text_1_list_text_2_list",
                "pairs of as many texts are scored",
                "/v1/score",
                {"text_1": ["Where?", "When?"], "text_2": ["here", "now"]},
                2,
            ),
            (
                "test_run_batch.py::test_score",
                "queries and documents are other names",
                "/v1/score",
                {"queries": "What is the capital?", "documents": ["Paris"]},
                1,
            ),
        )
    ),
    *(
        Case(
            source=source,
            name=f"{path} answers",
            calls=[Call(path, body)],
            status=404,
            names=path,
            rejected=why,
        )
        for source, path, body, why in (
            (
                "pooling/test_online.py::test_completion_request",
                "/pooling",
                {"model": MODEL, "input": MEAL, "encoding_format": "float"},
                "no served model has a vector of each token; `/v1/embeddings` has one of a text",
            ),
            (
                "classify/test_online.py::test_completion_request",
                "/classify",
                {"model": MODEL, "input": "This product was excellent"},
                NO_CLASSES,
            ),
            (
                "test_optional_middleware.py::test_v2_endpoint_accepts_valid_api_token",
                "/v2/embed",
                {"model": MODEL, "texts": ["hello"], "embedding_types": ["float"]},
                "it is Cohere's API; `/v1/embeddings` has the same vectors",
            ),
        )
    ),
]

M = "test_messages.py::"


def message(test: str, name: str, **options: Any) -> Case:
    """Return a case of one message of Anthropic's API."""
    body = {"max_tokens": 8192, "messages": user("how are you!")}
    return one(f"{M}{test}", name, "/v1/messages", body, **options)


NEW_YORK = {
    "name": "get_current_weather",
    "description": "Useful for querying the weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
MESSAGES = [
    message(
        "test_simple_messages",
        "an answer ends with end_turn, though max_tokens is over the context",
        holds=lambda a: a.json["stop_reason"] == "end_turn" and a.json["role"] == "assistant",
    ),
    message(
        "test_system_message",
        "system is taken",
        system="you are a helpful assistant",
        holds=lambda a: a.json["stop_reason"] == "end_turn" and a.json["role"] == "assistant",
    ),
    message(
        "test_anthropic_streaming",
        "a stream is sent",
        stream=True,
        holds=lambda a: a.types[0] == "message_start" and a.types[-1] == "message_stop",
    ),
    *(
        message(
            test,
            f"a call ends with tool_use{ending}",
            messages=user(
                script(
                    calls=[{"name": "get_current_weather", "arguments": {"location": "New York"}}]
                )
            ),
            tools=[NEW_YORK],
            stream=stream,
            servers=MOCK,
            holds=holds,
        )
        for test, ending, stream, holds in (
            (
                "test_anthropic_tool_call",
                "",
                False,
                lambda a: a.json["stop_reason"] == "tool_use" and a.json["role"] == "assistant",
            ),
            (
                "test_anthropic_tool_call_streaming",
                " in a stream",
                True,
                lambda a: (
                    [
                        event["delta"]["stop_reason"]
                        for event in a.events
                        if event["type"] == "message_delta"
                    ]
                    == ["tool_use"]
                ),
            ),
        )
    ),
]

D = "test_content_block_validation.py::"


def block(test: str, name: str, content: dict[str, Any], **options: Any) -> Case:
    """Return a case of one content block: of the assistant, or of the user that answers it."""
    used = {"type": "tool_use", "id": "toolu_01", "name": "get_weather", "input": {"city": "NYC"}}
    if content["type"] in ("tool_use", "thinking", "redacted_thinking"):
        blocks = [content, {"type": "text", "text": "I look."}]
        turns = [*user("Hi"), {"role": "assistant", "content": blocks}]
        if content["type"] == "tool_use":
            result = {"type": "tool_result", "tool_use_id": content.get("id", "toolu_01")}
            turns[1:] = [{"role": "assistant", "content": [content]}, *user([result])]
        else:
            turns += user("And?")
    elif content["type"] == "tool_result":
        turns = [*user("Hi"), {"role": "assistant", "content": [used]}, *user([content])]
    else:
        turns = user([content, {"type": "text", "text": "Hi"}])
    body = {"max_tokens": 5, "messages": turns}
    given = {} if "status" in options else {"holds": lambda a: a.json["type"] == "message"}
    return one(f"{D}{test}", name, "/v1/messages", body, **{"servers": MOCK} | given | options)


BLOCKS = [
    *(
        block(
            f"test_{kind}_{test}",
            f"a {kind} block {name} is an error",
            {"type": kind} | fields,
            status=400,
            names=names,
        )
        for kind, test, name, fields, names in (
            ("tool_use", "missing_id_raises", "without an id", {"name": "f", "input": {}}, "id"),
            ("tool_use", "missing_name_raises", "without a name", {"id": "t", "input": {}}, "name"),
            (
                "tool_use",
                "missing_input_raises",
                "without an input",
                {"id": "t", "name": "f"},
                "input",
            ),
            ("tool_result", "missing_tool_use_id_raises", "without an id", {}, "tool_use_id"),
            ("text", "block_none_text_raises", "without a text", {}, "text"),
            ("image", "block_missing_source_raises", "without a source", {}, "source"),
            (
                "thinking",
                "block_missing_thinking_raises",
                "without its text",
                {"signature": "abc"},
                "thinking",
            ),
        )
    ),
    *(
        block(f"test_{kind}_{test}", f"a {kind} block {name} is taken", {"type": kind} | fields)
        for kind, test, name, fields in (
            (
                "tool_use",
                "valid_passes",
                "with id, name and input",
                {"id": "toolu_01", "name": "get_weather", "input": {"city": "NYC"}},
            ),
            (
                "tool_use",
                "empty_input_dict_passes",
                "with an empty input",
                {"id": "toolu_01", "name": "ping", "input": {}},
            ),
            ("tool_result", "valid_passes", "without content", {"tool_use_id": "toolu_01"}),
            (
                "tool_result",
                "with_content_passes",
                "with content",
                {"tool_use_id": "toolu_01", "content": "result text"},
            ),
            ("text", "block_empty_string_passes", "with an empty text", {"text": ""}),
            (
                "thinking",
                "block_valid_passes",
                "with a signature",
                {"thinking": "I need to think", "signature": "sig_123"},
            ),
            ("thinking", "block_empty_string_passes", "with an empty text", {"thinking": ""}),
            ("thinking", "block_no_signature_passes", "without a signature", {"thinking": "hmm"}),
            ("redacted_thinking", "valid_passes", "with data", {"data": "opaque"}),
        )
    ),
    *(
        block(test, f"{name} is an error", content, otherwise=why)
        for test, name, content, why in (
            (
                "test_tool_use_empty_id_raises",
                "a tool_use block with an empty id",
                {"type": "tool_use", "id": "", "name": "f", "input": {}},
                "an id has only to be that of the result",
            ),
            (
                "test_tool_use_empty_name_raises",
                "a tool_use block with an empty name",
                {"type": "tool_use", "id": "t", "name": "", "input": {}},
                "the model reads its earlier call as it was sent",
            ),
            (
                "test_tool_result_empty_tool_use_id_raises",
                "a tool_result block with an empty id",
                {"type": "tool_result", "tool_use_id": ""},
                "an id has only to be that of the call",
            ),
            *(
                (
                    f"test_redacted_thinking_{test}_data_raises",
                    f"a redacted_thinking block with {name}",
                    {"type": "redacted_thinking"} | fields,
                    "the data is for the server that encrypted it, and is not read",
                )
                for test, name, fields in (
                    ("missing", "no data", {}),
                    ("empty", "empty data", {"data": ""}),
                )
            ),
        )
    ),
    block(
        "test_image_block_with_source_passes",
        "an image at an address is taken",
        {"type": "image", "source": {"type": "url", "url": "https://example.com/img.png"}},
        status=400,
        names="source",
        rejected="the server fetches from nowhere unless the operator sets `fetch.enabled`",
    ),
    block(
        "test_tool_reference_block_passes",
        "a tool_reference block is taken",
        {"type": "tool_reference", "tool_name": "search"},
        status=400,
        names="type",
        rejected="tools are searched by no one here; all of them are in `tools`",
    ),
]

PAIRS = {
    "response.completed": "response.created",
    "response.output_item.done": "response.output_item.added",
    "response.output_text.done": "response.output_text.delta",
    "response.content_part.done": "response.content_part.added",
    "response.reasoning_text.done": "response.reasoning_text.delta",
    "response.function_call_arguments.done": "response.function_call_arguments.delta",
}


def _is_nested(answer: Answer) -> bool:
    """Return whether each event that begins something is followed by the one that ends it."""
    begun: list[str] = []
    for kind in answer.types:
        if kind in PAIRS:
            if begun.pop() != PAIRS[kind]:
                return False
        elif kind in PAIRS.values() and (not begun or begun[-1] != kind or "added" in kind):
            begun.append(kind)
    return not begun


def _outputs(answer: Answer) -> list[str]:
    return [item["type"] for item in answer.json["output"]]


def _spoken(answer: Answer) -> str:
    parts = [
        part["text"]
        for item in answer.json["output"]
        if item["type"] == "message"
        for part in item["content"]
    ]
    return "".join(parts)


def _final(answer: Answer) -> Any:
    return answer.events[-1]["response"]


def _later(path: str, method: str = "GET") -> Callable[[Sequence[Answer]], Call]:
    """Return a request about the response that was just made."""
    return lambda answers: Call(path.format(answers[0].json["id"]), method=method)


B, S, ST, FC = (
    f"responses/{name}.py::"
    for name in ("test_basic", "test_simple", "test_stateful", "test_function_call")
)
THOUGHT = script(reasoning="17 by 19.", text="323")
HISTORY = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Be concise."}]},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Acknowledged."}],
    },
    {"type": "reasoning", "summary": [], "encrypted_content": None},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Reply."}]},
]
EVENT = {
    "type": "object",
    "properties": {
        "event_name": {"enum": ["science fair"]},
        "participants": {
            "type": "array",
            "items": {"enum": ["Alice", "Bob"]},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["event_name", "participants"],
    "additionalProperties": False,
}
RESPONSES = [
    response(
        f"{B}test_simple_input",
        "an answer has its reasoning and a message",
        input=THOUGHT,
        servers=MOCK,
        holds=lambda a: (
            _outputs(a) == ["reasoning", "message"]
            and a.json["output"][0]["content"][0]["text"] == "17 by 19."
            and _spoken(a) == "323"
        ),
    ),
    response(
        f"{B}test_instructions",
        "instructions are taken",
        instructions="Finish the answer with QED.",
        holds=lambda a: a.json["instructions"] == "Finish the answer with QED." and _spoken(a),
    ),
    response(
        f"{B}test_chat",
        "turns follow each other",
        input=[
            {"role": "system", "content": "Finish the answer with QED."},
            {"role": "user", "content": "What is 5 * 3?"},
            {"role": "assistant", "content": "15. QED."},
            {"role": "user", "content": "Multiply the result by 2."},
        ],
        holds=lambda a: a.json["status"] == "completed" and _spoken(a) != "",
    ),
    response(
        f"{B}test_chat_with_input_type",
        "content may be parts",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}],
        holds=lambda a: a.json["status"] == "completed",
    ),
    response(
        f"{B}test_logprobs",
        "include has log-probabilities of the text",
        include=["message.output_text.logprobs"],
        top_logprobs=5,
        holds=lambda a: (
            len(a.json["output"][-1]["content"][-1]["logprobs"][0]["top_logprobs"]) == 5
        ),
    ),
    response(
        f"{B}test_streaming",
        "a stream begins with response.created and ends with response.completed",
        stream=True,
        holds=lambda a: (
            a.types[0] == "response.created"
            and "response.output_text.delta" in a.types
            and a.types[-1] == "response.completed"
        ),
    ),
    response(
        f"{S}test_basic",
        "a whole answer has no incomplete_details",
        reasoning={"effort": "none"},
        servers=MOCK,
        holds=lambda a: a.json["status"] == "completed" and a.json["incomplete_details"] is None,
    ),
    response(
        f"{S}test_enable_response_messages",
        "enable_response_messages has the messages that the model read and wrote",
        enable_response_messages=True,
        status=400,
        names="enable_response_messages",
        rejected="`/v1/responses/render` shows the prompt, and `output` what was written",
    ),
    response(
        f"{S}test_reasoning_item",
        "reasoning is sent back as an item",
        input=[
            {"type": "message", "content": "Hello.", "role": "user"},
            {
                "type": "reasoning",
                "id": "lol",
                "content": [{"type": "reasoning_text", "text": "We need to respond: greeting."}],
                "summary": [],
            },
        ],
        temperature=0.0,
        holds=lambda a: a.json["status"] == "completed" and _outputs(a)[-1] == "message",
    ),
    response(
        f"{S}test_input_history_openai_shape_e2e",
        "items of an earlier answer have ids and a status",
        input=[
            item | ({} if item.get("role") == "user" else {"id": f"i{n}", "status": "completed"})
            for n, item in enumerate(HISTORY)
        ],
        holds=lambda a: a.json["status"] == "completed" and _spoken(a) != "",
    ),
    response(
        f"{S}test_input_history_openresponses_shape_e2e",
        "or have none",
        input=HISTORY,
        holds=lambda a: a.json["status"] == "completed" and _spoken(a) != "",
    ),
    Case(
        source=f"{S}test_multiturn_history_replay_without_ids_e2e",
        name="an answer is sent back as a message without an id",
        calls=[
            response_call(input="Remember MARKER-729."),
            lambda answers: response_call(
                input=[
                    {"role": "user", "content": "Remember MARKER-729."},
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": _spoken(answers[0])}],
                    },
                    {"type": "reasoning", "summary": [], "encrypted_content": None},
                    {"role": "user", "content": "What marker?"},
                ]
            ),
        ],
        holds=lambda _, a: a.json["status"] == "completed" and _spoken(a) != "",
        servers=BOTH,
    ),
    response(
        f"{S}test_streaming_output_consistency",
        "the deltas of a stream are the text of its last event",
        stream=True,
        holds=lambda a: (
            "".join(e["delta"] for e in a.events if e["type"] == "response.output_text.delta")
            == _final(a)["output"][-1]["content"][0]["text"]
            and _final(a)["status"] == "completed"
        ),
    ),
    response(
        f"{S}test_streaming_logprobs",
        "deltas of a stream have log-probabilities",
        stream=True,
        include=["message.output_text.logprobs"],
        top_logprobs=3,
        holds=lambda a: all(
            event["logprobs"]
            and all(
                entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 3
                for entry in event["logprobs"]
            )
            for event in a.events
            if event["type"] == "response.output_text.delta"
        ),
    ),
    *(
        response(
            f"{S}{test}",
            f"usage counts the tokens of reasoning{ending}",
            input=THOUGHT,
            stream=stream,
            servers=MOCK,
            holds=lambda a, stream=stream: (
                (_final(a) if stream else a.json)["usage"]["output_tokens_details"][
                    "reasoning_tokens"
                ]
                > 0
            ),
        )
        for test, ending, stream in (
            ("test_non_streaming_reasoning_tokens_e2e", "", False),
            ("test_streaming_reasoning_tokens_e2e", " in a stream", True),
        )
    ),
    response(
        f"{S}test_max_tokens",
        "an answer that is cut is incomplete, with the reason",
        max_output_tokens=3,
        holds=lambda a: (
            a.json["status"] == "incomplete"
            and a.json["incomplete_details"]["reason"] == "max_output_tokens"
        ),
    ),
    response(
        f"{S}test_extra_sampling_params",
        "top_k, repetition_penalty and seed are taken",
        max_output_tokens=50,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        repetition_penalty=1.2,
        seed=42,
        holds=lambda a: a.json["status"] in ("completed", "incomplete") and _spoken(a) != "",
    ),
    response(
        f"{S}test_streaming_types",
        "each event that begins something is followed by the one that ends it",
        input=THOUGHT,
        tools=[],
        stream=True,
        background=False,
        holds=_is_nested,
    ),
    *(
        response(
            f"responses/test_image.py::{test}",
            name,
            input=[
                {
                    "role": "user",
                    "content": [
                        *[{"type": "input_image", "image_url": PNG, "detail": "auto"}] * num,
                        {"type": "input_text", "text": "What's in this image?"},
                    ],
                }
            ],
            **options,
        )
        for test, name, num, options in (
            (
                "test_single_chat_session_image_base64encoded",
                "an image is a data URL",
                1,
                {"holds": lambda a: _spoken(a) != ""},
            ),
            (
                "test_multi_image_input",
                "several images are shown",
                2,
                {"holds": lambda a: _spoken(a) != ""},
            ),
            (
                "test_multi_image_input",
                "more images than the operator allows are an error",
                17,
                {"status": 400, "names": "image"},
            ),
        )
    ),
    response(
        "responses/test_structured_output.py::test_structured_output",
        "text.format keeps an answer to a schema",
        text={
            "format": {
                "type": "json_schema",
                "name": "calendar_event",
                "schema": EVENT,
                "description": "A calendar event.",
                "strict": True,
            }
        },
        holds=lambda a: json.loads(_spoken(a))["event_name"] == "science fair",
    ),
    response(
        "responses/test_count_tokens.py::test_count_responses_input_tokens",
        "an answer's prompt tokens are those that /input_tokens counts",
        holds=lambda a: a.json["usage"]["input_tokens"] > 0,
    ),
    Case(
        source="responses/test_count_tokens.py::test_count_responses_input_tokens",
        name="/v1/responses/input_tokens counts without answering",
        calls=[
            Call("/v1/responses/input_tokens", {"model": MODEL, "input": "Hello!"}),
            response_call(),
        ],
        holds=lambda counted, a: (
            counted.json["input_tokens"] == a.json["usage"]["input_tokens"] > 0
        ),
        servers=BOTH,
    ),
    *(
        response(
            f"{FC}test_function_tool_use",
            f"tool_choice of {tool_choice} has a call, after its reasoning",
            input=script(reasoning="Berlin.", calls=[{"name": NAMES[0], "arguments": VIENNA}]),
            tools=FLAT_TOOLS,
            tool_choice=tool_choice,
            servers=MOCK,
            holds=holds,
        )
        for tool_choice, holds in (
            ("auto", lambda a: _outputs(a) == ["reasoning", "function_call"]),
            (
                "required",
                lambda a: json.loads(a.json["output"][-1]["arguments"]) == VIENNA,
            ),
        )
    ),
    response(
        f"{FC}test_max_tokens_with_tool_choice_required",
        "an answer that ends inside its call is incomplete",
        input=CALL,
        tools=FLAT_TOOLS,
        tool_choice="required",
        max_output_tokens=3,
        servers=MOCK,
        holds=lambda a: (
            a.json["incomplete_details"]["reason"] == "max_output_tokens"
            and "function_call" not in _outputs(a)
        ),
    ),
    Case(
        source=f"{FC}test_named_tool_use",
        name="a named tool is called, and its result answered",
        calls=[
            response_call(
                input=CALL,
                tools=FLAT_TOOLS,
                tool_choice={"type": "function", "name": "get_current_weather"},
            ),
            lambda answers: response_call(
                input=[
                    {"role": "user", "content": "What's the weather like?"},
                    answers[0].json["output"][-1],
                    {
                        "type": "function_call_output",
                        "call_id": answers[0].json["output"][-1]["call_id"],
                        "output": "20°C",
                    },
                ]
            ),
        ],
        holds=lambda called, a: (
            called.json["output"][-1]["name"] == "get_current_weather" and _spoken(a) != ""
        ),
    ),
    response(
        f"{FC}test_function_calling_with_streaming_expected_arguments",
        "the deltas of a call are its arguments",
        input=CALL,
        tools=FLAT_TOOLS,
        stream=True,
        servers=MOCK,
        holds=lambda a: (
            json.loads(
                "".join(
                    event["delta"]
                    for event in a.events
                    if event["type"] == "response.function_call_arguments.delta"
                )
            )
            == json.loads(_final(a)["output"][-1]["arguments"])
            == VIENNA
        ),
    ),
    response(
        f"{FC}test_function_calling_with_streaming_types",
        "events of a call begin and end in pairs",
        input=CALL,
        tools=FLAT_TOOLS,
        stream=True,
        servers=MOCK,
        holds=_is_nested,
    ),
    Case(
        source=f"{ST}test_store",
        name="a response is stored unless store is false",
        calls=[response_call(), _later("/v1/responses/{}")],
        holds=lambda made, a: a.json["status"] == "completed" and a.json["id"] == made.json["id"],
        servers=BOTH,
    ),
    Case(
        source=f"{ST}test_store",
        name="a response that is not stored is not found",
        calls=[response_call(store=False), _later("/v1/responses/{}")],
        status=404,
        names="response",
        servers=BOTH,
    ),
    Case(
        source=f"{ST}test_background",
        name="a response in the background is answered at once and found later",
        calls=[
            response_call(background=True),
            _later("/v1/responses/{}?stream=true"),
            _later("/v1/responses/{}"),
        ],
        holds=lambda made, _, a: (
            made.json["status"] in ("queued", "in_progress") and a.json["status"] == "completed"
        ),
        servers=BOTH,
    ),
    response(
        f"{ST}test_background_error",
        "background without store is an error",
        background=True,
        store=False,
        status=400,
        names="background",
    ),
    Case(
        source=f"{ST}test_background_cancel",
        name="a response in the background is cancelled, and stays so",
        calls=[
            response_call(background=True, input=script(text="ab", tokens=5000, latency_s=0.05)),
            _later("/v1/responses/{}/cancel", "POST"),
            _later("/v1/responses/{}"),
        ],
        holds=lambda _, cancelled, a: cancelled.json["status"] == a.json["status"] == "cancelled",
    ),
    Case(
        source=f"{ST}test_cancel_completed",
        name="one that was not in the background cannot be cancelled",
        calls=[response_call(), _later("/v1/responses/{}/cancel", "POST")],
        status=400,
        names="background",
        servers=BOTH,
    ),
    Case(
        source=f"{ST}test_previous_response_id",
        name="a response follows another one",
        calls=[
            response_call(input="Hello, my name is John."),
            lambda answers: response_call(
                input="What is my name?", previous_response_id=answers[0].json["id"]
            ),
        ],
        holds=lambda first, a: (
            a.json["previous_response_id"] == first.json["id"]
            and a.json["usage"]["input_tokens"] > first.json["usage"]["input_tokens"]
        ),
        servers=BOTH,
    ),
    Case(
        source=f"{ST}test_two_responses_with_same_prev_id",
        name="two responses follow the same one, and know nothing of each other",
        calls=[
            response_call(input="Hello, my name is John."),
            *(
                lambda answers: response_call(
                    input="What is my name?", previous_response_id=answers[0].json["id"]
                )
                for _ in range(2)
            ),
        ],
        holds=lambda _, one, two: (
            one.json["usage"]["input_tokens"] == two.json["usage"]["input_tokens"]
        ),
        servers=BOTH,
    ),
]

R = "test_render.py::"


def _is_rendered(answer: Answer) -> bool:
    return all(isinstance(token, int) for token in answer.json["token_ids"]) and bool(
        answer.json["token_ids"]
    )


def rendered(test: str, name: str, path: str, **options: Any) -> Case:
    """Return a case of one prompt that is made and not answered."""
    body: dict[str, Any] = {"messages": user("Hello")}
    if path == "messages":
        body["max_tokens"] = 16
    elif path == "completions":
        body = {"prompt": "Hello"}
    given = {} if "status" in options else {"holds": _is_rendered}
    source = test if "::" in test else f"{R}{test}"
    return one(source, name, f"/v1/{path}/render", body, **given | options)


RENDER = [
    rendered(
        "test_completion_render_basic",
        "the prompts of texts are a list",
        "completions",
        holds=lambda a: (
            len(a.json) == 1
            and len(a.json[0]["token_ids"]) > 0
            and {"sampling_params", "model"} <= a.json[0].keys()
            and a.json[0]["request_id"].startswith("cmpl-")
        ),
    ),
    rendered(
        "test_completion_render_multiple_prompts",
        "several texts have a prompt each",
        "completions",
        prompt=["Hello world", "Goodbye world"],
        holds=lambda a: len(a.json) == 2 and all(each["token_ids"] for each in a.json),
    ),
    rendered("test_chat_completion_render_basic", "the prompt of a chat", "chat/completions"),
    rendered(
        "test_chat_completion_render_multi_turn",
        "the prompt of several turns",
        "chat/completions",
        messages=TURNS,
    ),
    rendered(
        "test_chat_completion_render_with_stream_true",
        "a body that asks for a stream is rendered as JSON, and keeps saying so",
        "chat/completions",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        holds=lambda a: (
            a.headers["content-type"].startswith("application/json")
            and a.json["stream"] is True
            and a.json["stream_options"]["include_usage"] is True
            and a.json["stream_options"]["continuous_usage_stats"] is True
        ),
    ),
    rendered(
        "test_chat_completion_render_with_sampling_params",
        "sampling parameters come back as they were sent",
        "chat/completions",
        temperature=0.123,
        top_p=0.456,
        frequency_penalty=1.1,
        holds=lambda a: (
            [a.json["sampling_params"][name] for name in ("temperature", "top_p")] == [0.123, 0.456]
            and a.json["sampling_params"]["frequency_penalty"] == 1.1
        ),
    ),
    rendered("test_messages_render_basic", "the prompt of Anthropic's API", "messages"),
    rendered(
        "test_messages_render_system_and_multi_turn",
        "with system and several turns",
        "messages",
        system="You are a helpful assistant.",
        messages=TURNS,
    ),
    *(
        rendered(
            test,
            f"an unknown model is an error of {path}",
            path,
            status=404,
            names="model",
            model="invalid-model-name",
        )
        for test, path in (
            ("test_completion_render_error_invalid_model", "completions"),
            ("test_chat_completion_render_error_invalid_model", "chat/completions"),
            ("test_messages_render_error_invalid_model", "messages"),
        )
    ),
]

RENDER += [
    rendered(
        "test_render_multimodal.py::test_chat_completion_render_with_base64_image_url",
        "an image has a hash and a place among the tokens",
        "chat/completions",
        messages=shown(PNG),
        holds=lambda a: (
            len(a.json["features"]["mm_hashes"]["image"]) == 1
            and a.json["features"]["mm_placeholders"]["image"][0]["length"] > 0
            and a.json["features"]["mm_placeholders"]["image"][0]["offset"] >= 0
        ),
    ),
    Case(
        source="test_render_multimodal.py::test_tokenize_matches_render_for_multimodal_input",
        name="/tokenize has the tokens of /render",
        calls=[
            Call(f"{CHAT}/render", {"model": MODEL, "messages": shown(PNG)}),
            Call("/tokenize", {"model": MODEL, "messages": shown(PNG)}),
        ],
        holds=lambda made, a: (
            made.json["token_ids"] == a.json["tokens"]
            and a.json["count"] == len(made.json["token_ids"])
        ),
        servers=BOTH,
    ),
]

G = "test_serving_tokens.py::"


def generated(test: str, name: str, **options: Any) -> Case:
    """Return a case of one answer to tokens."""
    body = {"token_ids": [65, 66, 67], "sampling_params": {"max_tokens": 5}}
    return one(f"{G}{test}", name, "/inference/v1/generate", body, **options)


GENERATE = [
    generated(
        "test_generate_endpoint",
        "tokens are answered with tokens",
        stream=False,
        holds=lambda a: 0 < len(a.choice["token_ids"]) <= 5,
    ),
    generated(
        "test_generate_without_sampling_params",
        "without sampling parameters, too",
        sampling_params=None,
        holds=lambda a: len(a.choice["token_ids"]) > 0,
    ),
    generated(
        "test_generate_defaults_max_tokens_when_omitted",
        "an answer without max_tokens is bounded by the context",
        sampling_params={"temperature": 0.0, "ignore_eos": True},
        servers=("demo",),
        holds=lambda a: len(a.choice["token_ids"]) > 16,
    ),
    generated(
        "test_generate_stream",
        "events of a stream have new tokens, the last one a finish reason",
        stream=True,
        holds=lambda a: (
            0 < sum(len(choice["token_ids"]) for choice in a.streamed) <= 5
            and a.streamed[-1]["finish_reason"] is not None
            and a.is_done
        ),
    ),
    *(
        generated(
            "test_generate_logprobs",
            f"logprobs of {num} has {num} likeliest of each token",
            sampling_params={"max_tokens": 5, "temperature": 0.0, "logprobs": num},
            holds=lambda a, num=num: (
                len(a.choice["logprobs"]["content"]) == len(a.choice["token_ids"])
                and all(
                    len(entry["top_logprobs"]) == num for entry in a.choice["logprobs"]["content"]
                )
            ),
        )
        for num in (1, 5)
    ),
    Case(
        source=f"{G}test_same_response_as_chat_completions",
        name="the tokens of a rendered chat have the chat's answer",
        calls=[
            Call(f"{CHAT}/render", {"model": MODEL, "messages": SUM, "temperature": 0}),
            lambda answers: Call(
                "/inference/v1/generate",
                {
                    "model": MODEL,
                    "token_ids": answers[0].json["token_ids"],
                    "sampling_params": {"max_tokens": 24, "temperature": 0.0},
                },
            ),
            lambda answers: Call(
                "/detokenize", {"model": MODEL, "tokens": answers[1].choice["token_ids"]}
            ),
            chat_call(max_completion_tokens=24, temperature=0),
        ],
        holds=lambda _, __, text, a: text.json["prompt"] == a.content != "",
        servers=BOTH,
    ),
    generated(
        "test_generate_with_kv_transfer_params",
        "kv_transfer_params moves caches between servers",
        kv_transfer_params={"do_remote_decode": True},
        status=400,
        names="kv_transfer_params",
        rejected="caches are not transferred between servers",
    ),
]


def _line(custom_id: str, body: dict[str, Any], url: str = CHAT) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def _sent(lines: Sequence[str]) -> Call:
    form = {"purpose": "batch", "file": ("batch.jsonl", "\n".join(lines))}
    return Call("/v1/files", form=form)


def _batch(answers: Sequence[Answer]) -> Call:
    """Return what begins a batch of the file that was sent first."""
    body = {
        "input_file_id": answers[0].json["id"],
        "endpoint": CHAT,
        "completion_window": "24h",
    }
    return Call("/v1/batches", body)


def _batch_status(answers: Sequence[Answer]) -> Call:
    return Call(f"/v1/batches/{answers[1].json['id']}", method="GET")


HELLO = {"model": MODEL, "messages": user("Hello world!"), "max_tokens": 1000}
BATCHES = [
    Case(
        source="test_run_batch.py::test_completions",
        name="a file of chats is taken as a batch",
        calls=[
            _sent([_line("request-1", HELLO), _line("request-2", HELLO)]),
            _batch,
            _batch_status,
        ],
        holds=lambda _, made, status: (
            made.json["object"] == "batch"
            and status.json["status"] in ("validating", "in_progress", "finalizing", "completed")
        ),
        servers=BOTH,
    ),
    one(
        "test_batched_chat_completions.py::test_batched_chat_completions",
        "/v1/chat/completions/batch answers several conversations",
        "/v1/chat/completions/batch",
        {"messages": [user("alpha"), user("beta")]},
        status=404,
        names="/v1/chat/completions/batch",
        rejected="each conversation is a request, and `/v1/batches` takes files of them",
    ),
    Case(
        source="test_lora_adapters.py::test_dynamic_lora_lineage",
        name="/v1/load_lora_adapter loads an adapter from a path",
        calls=[Call("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/adapters/a"})],
        status=404,
        names="/v1/load_lora_adapter",
        rejected="no client names paths of the server; the operator serves an adapter as a model",
    ),
    Case(
        source="test_transcription_validation_whisper.py::test_basic_audio",
        name="/v1/audio/transcriptions writes down what is spoken",
        calls=[Call("/v1/audio/transcriptions", {"model": MODEL})],
        status=404,
        names="/v1/audio/transcriptions",
        rejected="no served model hears",
    ),
]

METRICS = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    *(
        f"{name}_{part}"
        for name in (
            "request_prompt_tokens",
            "request_generation_tokens",
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
        )
        for part in ("sum", "bucket", "count")
    ),
)
MORE_METRICS = ("iteration_tokens_total", "request_params_n_sum", "request_params_max_tokens_sum")
OTHER_METRICS = (
    ("num_requests_waiting_by_reason", "requests wait for one reason, room"),
    ("cache_config_info", "`/v1/capabilities` has the settings"),
    (
        "request_inference_time_seconds_sum",
        "`vllm:request_prefill_time_seconds` and `vllm:request_decode_time_seconds` add up to it",
    ),
    ("request_num_preemptions_sum", "`vllm:num_preemptions_total` counts those of all requests"),
)
STATES = [
    Case(
        source="test_basic.py::test_show_version",
        name="/version has the version alone",
        calls=[get("/version")],
        holds=lambda a: a.json.keys() == {"version"},
        servers=BOTH,
    ),
    Case(
        source="test_basic.py::test_check_health",
        name="/health answers",
        calls=[get("/health")],
        servers=BOTH,
    ),
    Case(
        source="test_basic.py::test_server_load",
        name="/load is 0 between requests",
        calls=[get("/load")],
        holds=lambda a: a.json["server_load"] == 0,
        servers=BOTH,
    ),
    Case(
        source="test_basic.py::test_request_wrong_content_type",
        name="a body that is announced as a form is an error",
        calls=[
            Call(
                CHAT,
                {"model": MODEL, "messages": SUM},
                headers={"content-type": "application/x-www-form-urlencoded"},
            )
        ],
        status=415,
        names="content-type",
        servers=BOTH,
    ),
    Case(
        source="test_models.py::test_check_models",
        name="/v1/models has the model with its root",
        calls=[get("/v1/models")],
        holds=lambda a: a.json["data"][0]["id"] == a.json["data"][0]["root"] != "",
        servers=BOTH,
    ),
    Case(
        source="test_models.py::test_retrieve_base_model",
        name="a model is found by its name",
        calls=[get(f"/v1/models/{MODEL}")],
        holds=lambda a: a.json["id"] == a.json["root"] != "",
        servers=BOTH,
    ),
    Case(
        source="test_models.py::test_retrieve_unknown_model",
        name="an unknown model is a 404",
        calls=[get("/v1/models/this-model-does-not-exist")],
        status=404,
        names="model",
        servers=BOTH,
    ),
    *(
        Case(
            source="test_non_object_body_validation.py::"
            "test_chat_completion_request_rejects_non_object_body",
            name=f"a body that is {name} is an error",
            calls=[Call(CHAT, body)],
            status=400,
            servers=BOTH,
        )
        for name, body in (
            ("no JSON", b"this is not valid json{{{"),
            ("a text", b'"text"'),
            ("a list", b'["not", "an", "object"]'),
            ("a number", b"42"),
            ("null", b"null"),
        )
    ),
    chat(
        "test_non_object_body_validation.py::"
        "test_chat_completion_request_cache_salt_still_validated_on_dict",
        "an empty cache_salt is an error",
        cache_salt="",
        max_tokens=5,
        otherwise="an empty text is no salt, as null is none",
    ),
    Case(
        source="test_metrics.py::test_metrics_exist",
        name="/metrics has vLLM's names",
        calls=[chat_call(), get("/metrics")],
        holds=lambda _, a: all(f"vllm:{name}" in a.text for name in METRICS),
        servers=BOTH,
    ),
    *(
        Case(
            source="test_metrics.py::test_metrics_exist",
            name=f"among them {name}",
            calls=[get("/metrics")],
            holds=lambda a, name=name: f"vllm:{name}" in a.text,
            servers=BOTH,
        )
        for name in MORE_METRICS
    ),
    *(
        Case(
            source="test_metrics.py::test_metrics_exist",
            name=f"among them {name}",
            calls=[get("/metrics")],
            holds=lambda a, name=name: f"vllm:{name}" not in a.text,
            otherwise=why,
        )
        for name, why in OTHER_METRICS
    ),
    Case(
        source="test_optional_middleware.py::test_missing_api_token",
        name="/v1/models needs a key where keys are required",
        calls=[Call("/v1/models", method="GET", headers={"authorization": ""})],
        status=401,
        names="key",
        servers=["keyed"],
    ),
    Case(
        source="test_optional_middleware.py::test_passed_api_token",
        name="a key is taken as a bearer token",
        calls=[get("/v1/models")],
        servers=["keyed"],
    ),
    Case(
        source="test_optional_middleware.py::test_not_v1_or_v2_path_skips_auth",
        name="/health needs no key",
        calls=[Call("/health", method="GET", headers={"authorization": ""})],
        servers=["keyed"],
    ),
    Case(
        source="test_optional_middleware.py::test_no_api_token",
        name="no key is needed where none are required",
        calls=[get("/v1/models")],
        servers=BOTH,
    ),
    Case(
        source="test_optional_middleware.py::test_enable_request_id_header",
        name="answers have an x-request-id",
        calls=[get("/health")],
        holds=lambda a: a.headers["x-request-id"] != "",
    ),
    Case(
        source="test_optional_middleware.py::test_custom_request_id_header",
        name="an x-request-id comes back as it was sent",
        calls=[get("/health", x_request_id="Custom")],
        holds=lambda a: a.headers["x-request-id"] == "Custom",
    ),
    Case(
        source="test_cors_middleware.py::"
        "test_default_origins_prevent_cross_origin_reads_and_json_requests",
        name="a page of an unlisted origin reads nothing",
        calls=[get("/v1/models", origin="http://attacker.example")],
        holds=lambda a: "access-control-allow-origin" not in a.headers,
    ),
    Case(
        source="test_cors_middleware.py::"
        "test_default_origins_prevent_cross_origin_reads_and_json_requests",
        name="and its preflight is not allowed",
        calls=[
            Call(
                CHAT,
                method="OPTIONS",
                headers={
                    "origin": "http://attacker.example",
                    "access-control-request-method": "POST",
                    "access-control-request-headers": "content-type",
                },
            )
        ],
        status=204,
        holds=lambda a: "access-control-allow-origin" not in a.headers,
    ),
    Case(
        source="test_cors_middleware.py::test_explicit_origin_allows_browser_requests",
        name="a page of a listed origin reads answers",
        calls=[get("/v1/models", origin=PAGE)],
        holds=lambda a: a.headers["access-control-allow-origin"] == PAGE,
    ),
]

CASES: Sequence[Case] = (
    *LOGPROBS,
    *STREAMS,
    *FORMS,
    *TEXTS,
    *SAMPLING,
    *CALLS,
    *IMAGES,
    *TOKENS,
    *EMBEDDINGS,
    *MESSAGES,
    *BLOCKS,
    *RESPONSES,
    *RENDER,
    *GENERATE,
    *STATES,
    *BATCHES,
)
