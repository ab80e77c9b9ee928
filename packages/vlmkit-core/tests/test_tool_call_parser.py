"""Tool calls are separated from text, however an answer is split into tokens."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from vlmkit.kit.tool_call_formats import FORMATS
from vlmkit.kit.tool_call_parser import ToolCallParser
from vlmkit.types.delta import reasoning_of, text_of, tool_calls_of

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
ARGUMENTS = {"city": 'Köln "am\nRhein" </x> {', "days": 3, "near": [{"x": None}]}
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
HERMES = '<tool_call>\n{"name": "weather", "arguments": ' + JSON + "}\n</tool_call>"
WRITTEN = {
    "hermes": HERMES + "\n" + HERMES,
    "llama": f'{{"name": "weather", "parameters": {JSON}}}; {{"name": "weather", '
    f'"parameters": {JSON}}}',
    "mistral": f'[TOOL_CALLS] [{{"arguments": {JSON}, "id": "aBc", "name": "weather"}}, '
    f'{{"name": "weather", "arguments": {json.dumps(JSON)}}}]',
    "mistral_named": f"[TOOL_CALLS]weather[ARGS]{JSON}[TOOL_CALLS]weather[ARGS] {JSON}",
    "granite": f'<|tool_call|>[{{"name": "weather", "arguments": {JSON}}}, '
    f'{{"name": "weather", "arguments": {JSON}}}]',
    "glm": 2
    * (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>"
        + ARGUMENTS["city"]
        + "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>near"
        '</arg_key><arg_value>[{"x": null}]</arg_value>\n</tool_call>'
    ),
    "qwen_tags": 2
    * (
        "<tool_call>\n<function=weather>\n<parameter=city>\n"
        + ARGUMENTS["city"]
        + "\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=near>\n"
        '[{"x": null}]\n</parameter>\n</function>\n</tool_call>\n'
    ),
}


PIECES = (
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_call|>",
    '{"name": "f"',
    "}",
    ', "arguments": ',
    "{",
    '"',
    "\\",
    "[",
    "]",
    ",",
    ";",
    "f",
    "\n",
    " ",
    "<function=",
    ">",
    "<parameter=",
    "</parameter>",
    "</function>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "é",
)


class TextDetokenizer:
    """A detokenizer whose tokens are texts; delimiter tokens have no text."""

    def push(self, token):
        return token if isinstance(token, str) else ""

    def flush(self):
        return ""


def read(reader, tokens):
    """Return reasoning, text, and calls."""
    deltas = [delta for token in tokens for delta in reader.push(token)] + [*reader.finish()]
    calls = tool_calls_of(deltas)
    assert len({call.id for call in calls}) == len(calls)
    named_calls = [(call.name, call.arguments) for call in calls]
    return reasoning_of(deltas), text_of(deltas), named_calls


def spelled_format(form):
    return ToolCallParser(TextDetokenizer, form, [TOOL])


def cut(text, cuts):
    bounds = [0, *sorted(cut_point % (len(text) + 1) for cut_point in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@pytest.mark.parametrize("name", FORMATS)
@given(cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_tool_calls_do_not_depend_on_how_an_answer_is_cut(name, cuts):
    before = "" if name == "llama" else "I look.\n\n"
    expected = ("", before.strip(), [("weather", ARGUMENTS)] * 2)
    reasoning, text_part, calls = read(
        spelled_format(FORMATS[name]), cut(before + WRITTEN[name], cuts)
    )
    assert (reasoning, text_part, [(n, json.loads(text)) for n, text in calls]) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "I <tool_call> you"),
        ("hermes", '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>\n{"arguments": {"a": 1'),
        ("hermes", "a <tool_ca"),
        ("llama", '{"colour": "red"}'),
        ("llama", 'so {"name": "weather", "parameters": {}}'),
        ("mistral", "[TOOL_CALLS] no list"),
        ("mistral_named", "[TOOL_CALLS]weather"),
        ("glm", "<tool_call>"),
        ("qwen_tags", "<tool_call>\n<function"),
        ("qwen_tags", "<tool_call>\n<other>x</tool_call>"),
    ],
)
@pytest.mark.parametrize("cuts", [(), (3, 9, 14), range(60)])
def test_text_that_does_not_become_a_call_stays_text(name, text, cuts):
    _, text_part, calls = read(spelled_format(FORMATS[name]), cut(text, cuts))
    assert calls == []
    assert "".join(text_part.split()) == "".join(text.split())


@pytest.mark.parametrize("name", FORMATS)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12), cuts=st.lists(st.integers(0, 99)))
@example(pieces=["[", "[TOOL_CALLS]"], cuts=[2])
def test_any_text_is_parsed_to_its_end_however_it_is_cut(name, pieces, cuts):
    text = "".join(pieces)
    assert read(spelled_format(FORMATS[name]), cut(text, cuts)) == read(
        spelled_format(FORMATS[name]), [text]
    )


def test_arguments_of_calls_are_streamed():
    reader = spelled_format(FORMATS["hermes"])
    start = '<tool_call>{"name": "weather", "arguments": {"city": "Kö'
    (call,) = tool_calls_of([d for piece in start for d in reader.push(piece)])
    assert (call.name, call.arguments) == ("weather", '{"city": "Kö')


def test_a_call_without_arguments_has_an_empty_object():
    for text in ('<tool_call>{"name": "weather"}</tool_call>', '<tool_call>{"name": "weather"}'):
        assert read(spelled_format(FORMATS["hermes"]), [text]) == ("", "", [("weather", "{}")])


MARK = 900_001  # a token


@pytest.mark.parametrize("name", ["hermes", "mistral_named", "glm", "qwen_tags"])
def test_a_call_truncated_before_its_name_is_dropped_after_a_delimiter_token(name):
    form = FORMATS[name]
    marked = replace(form, open=form.open._replace(token_id=MARK))
    begun = WRITTEN[name].removeprefix(form.open.text)
    for stop in range(begun.index("weather")):
        _, text_part, calls = read(spelled_format(marked), [MARK, *begun[:stop]])
        assert (text_part, calls) == ("", [])
        spelled = form.open.text + begun[:stop]
        assert read(spelled_format(form), [spelled])[1] == spelled
