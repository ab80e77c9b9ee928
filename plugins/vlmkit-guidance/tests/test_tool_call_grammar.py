"""Grammars of tool calls accept exactly the calls of their format, and constrain answers."""

import json
from dataclasses import replace

import pytest

import vlmkit
from vlmkit.errors import ConstraintError
from vlmkit.formats.tool_call_grammar import tool_call_grammar
from vlmkit.interfaces.chat_format import Calling
from vlmkit.interfaces.constraint import Vocabulary
from vlmkit.kit.tool_call_formats import FORMATS
from vlmkit.types.constraint import JsonSchema
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.tool_choice import NamedTool
from vlmkit_guidance.compiler import GuidanceCompiler

OPEN, CLOSE = 256, 257
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("weather", "clock")
]
JSON = '{"city": "K\u00f6ln", "days": 2}'
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "clock", "arguments": ' + JSON + "}\n</tool_call>",
    "qwen_tags": "<tool_call>\n<function=clock>\n<parameter=city>\nK\u00f6ln\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>clock\n<arg_key>city</arg_key>\n<arg_value>K\u00f6ln</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "clock", "arguments": ' + JSON + "}]",
    "mistral_named": "[TOOL_CALLS]clock[ARGS]" + JSON,
    "granite": '<|tool_call|>[{"name": "clock", "arguments": ' + JSON + "}]",
    "llama": '{"name": "clock", "parameters": ' + JSON + "}",
}


@pytest.fixture(scope="module")
def compiler():
    silent = [b"", b""]
    token_bytes = [bytes([number]) for number in range(256)] + silent
    return GuidanceCompiler(Vocabulary(token_bytes, lambda text: list(text.encode())))


def form_of(name, *, has_tokens):
    form = FORMATS[name]
    if not has_tokens:
        return form
    close = form.close._replace(token_id=CLOSE) if form.close.text else form.close
    return replace(form, open=form.open._replace(token_id=OPEN), close=close)


def ids_of(form, text):
    """Return the tokens of a text: bytes, and marks that are single tokens."""
    found = []
    while text:
        mark = next(
            (m for m in (form.open, form.close) if m.token_id and text.startswith(m.text)), None
        )
        found += [mark.token_id] if mark else list(text[0].encode())
        text = text[len(mark.text) if mark else 1 :]
    return found


def accepts(compiler, form, text, **options):
    options = {"choice": "auto", **options}
    matcher = compiler.compile(tool_call_grammar(Calling(form, TOOLS), **options))()
    return all(map(matcher.accept, ids_of(form, text))) and matcher.may_end


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_the_grammar_accepts_a_written_call_and_rejects_a_mutated_one(compiler, name, has_tokens):
    has_tokens = has_tokens and name != "llama"
    form, call = form_of(name, has_tokens=has_tokens), WRITTEN[name]
    for choice in ("auto", "required", NamedTool("clock")):
        assert accepts(compiler, form, call, choice=choice)
        assert not accepts(compiler, form, call.replace("clock", "watch"), choice=choice)
        assert not accepts(compiler, form, call.replace("days", "hours"), choice=choice)
        assert not accepts(compiler, form, call[:-1] + "?", choice=choice)
    assert not accepts(compiler, form, call, choice=NamedTool("weather"))
    assert accepts(compiler, form, "Hello.")
    assert not accepts(compiler, form, "Hello.", choice="required")
    if name != "llama":
        assert accepts(compiler, form, "I look. " + call)


@pytest.mark.parametrize("name", FORMATS)
def test_the_number_of_calls_is_limited(compiler, name):
    form, call = FORMATS[name], WRITTEN[name]
    if form.is_list:
        item = call[call.index("{") : -1]
        twice = call[:-1] + ", " + item + "]"
    else:
        twice = call + form.between + call
    assert accepts(compiler, form, twice)
    assert not accepts(compiler, form, twice, is_parallel=False)


def test_text_that_resembles_a_mark_is_allowed(compiler):
    form = FORMATS["hermes"]
    for text in ("<", "a < b", "<<tool_cal", "<tool_<tool_", "x<tool_call", "\n\n<tool_call?>é"):
        assert accepts(compiler, form, text)
    for text in ("<tool_call>", "a <<tool_call>b", "<tool_call<tool_call>", "a<tool_call> "):
        assert not accepts(compiler, form, text)


def test_an_answer_without_calls_follows_the_response_format(compiler):
    form = FORMATS["hermes"]
    content = JsonSchema.of({"enum": ["yes"]})
    assert accepts(compiler, form, '"yes"', content=content)
    assert not accepts(compiler, form, "yes", content=content)
    assert accepts(compiler, form, WRITTEN["hermes"], content=content)


def test_a_hundred_calls_match_their_schema():
    params = SamplingParams(temperature=2.0, max_tokens=200, logit_bias={265: -100.0})
    with vlmkit.load("mock") as model:
        for seed in range(100):
            request = Request(
                messages=[Message.of("user", "hello")],
                tools=TOOLS,
                tool_choice="required",
                parallel_tool_calls=False,
                params=params.replaced({"seed": seed}),
            )
            (choice,) = model.submit(request).result().choices
            assert choice.finish_reason == "stop"
            (call,) = choice.tool_calls
            assert call.name in ("weather", "clock")
            arguments = json.loads(call.arguments)
            assert set(arguments) == {"city", "days"}
            assert len(arguments["city"]) <= 9
            assert arguments["days"] in (1, 2)


def test_without_a_compiler_a_required_call_is_refused():
    fields = {"messages": [Message.of("user", "hello")], "tools": TOOLS}
    with vlmkit.load("mock", constraint={"use": "none"}) as model:
        for own in ({"tool_choice": "required"}, {"parallel_tool_calls": False}):
            with pytest.raises(ConstraintError, match="cannot be kept to") as refused:
                model.submit(Request(**fields, **own))
            assert refused.value.param in own
        assert model.submit(Request(**fields)).result().text == "hello"
