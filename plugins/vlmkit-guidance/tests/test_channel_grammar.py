"""Grammars of channels accept exactly the answers of their format."""

import re
from dataclasses import fields, replace

import pytest

from vlmkit.errors import ConstraintError
from vlmkit.formats.tool_call_grammar import tool_call_grammar
from vlmkit.interfaces.chat_format import Calling, Mark
from vlmkit.interfaces.constraint import Vocabulary
from vlmkit.kit.tool_call_formats import CHANNELS, FORMATS
from vlmkit.types.constraint import JsonSchema, OneOf, Regex
from vlmkit.types.tool_choice import NamedTool
from vlmkit_guidance.compiler import GuidanceCompiler

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
JSON = '{"city": "Köln", "days": 2}'
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
SAID = "<|channel|>final<|message|>It is."
CALLS = [
    f" to=functions.clock<|channel|>commentary json<|message|>{JSON}",
    f" to=functions.clock<|channel|>commentary<|message|>{JSON}",
    f"<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{JSON}",
    f"<|channel|>commentary to=functions.clock<|constrain|>json<|message|>{JSON}",
    f"<|channel|>commentary to=functions.clock<|message|>{JSON}",
]
CHOICES = ("auto", "required", NamedTool("clock"))


def in_tokens(form):
    marks = {f.name: m for f in fields(form) if isinstance(m := getattr(form, f.name), Mark)}
    numbered = enumerate(marks.items(), start=256)
    return replace(form, **{name: mark._replace(token_id=i) for i, (name, mark) in numbered})


HARMONY = in_tokens(CHANNELS["harmony"])


@pytest.fixture(scope="module")
def compiler():
    token_bytes = [bytes([number]) for number in range(256)] + [b""] * len(fields(HARMONY))
    return GuidanceCompiler(Vocabulary(token_bytes, lambda text: list(text.encode())))


def accepts(compiler, text, form=HARMONY, tools=TOOLS, choice="auto", **options):
    found = [getattr(form, field.name) for field in fields(form)]
    ids = {mark.text: mark.token_id for mark in found if isinstance(mark, Mark)}
    matcher = compiler.compile(tool_call_grammar(Calling(form, tools), choice, **options))()
    pieces = re.split(r"(<\|[a-z]+\|>)", text)
    tokens = [i for p in pieces for i in ([ids[p]] if p in ids else p.encode())]
    return all(map(matcher.accept, tokens)) and matcher.may_end


@pytest.mark.parametrize("call", CALLS)
def test_the_grammar_accepts_a_written_call_and_rejects_a_mutated_one(compiler, call):
    for choice in CHOICES:
        for before in ("", THOUGHT, THOUGHT + THOUGHT):
            assert accepts(compiler, before + call, choice=choice)
        assert not accepts(compiler, call.replace("clock", "watch"), choice=choice)
        assert not accepts(compiler, call.replace("days", "hours"), choice=choice)
        assert not accepts(compiler, call.replace("commentary", "final"), choice=choice)
        assert not accepts(compiler, call.replace("<|message|>", ""), choice=choice)
        assert not accepts(compiler, call[:-1], choice=choice)
        assert not accepts(compiler, call + "?", choice=choice)
        assert not accepts(compiler, f"{call}<|end|><|start|>assistant{call}", choice=choice)
    for choice in ("none", NamedTool("weather")):
        assert not accepts(compiler, call, choice=choice)


def test_text_is_in_its_channel(compiler):
    for before in ("", THOUGHT, PREAMBLE, THOUGHT + PREAMBLE + THOUGHT):
        assert accepts(compiler, before + SAID)
        assert accepts(compiler, before + SAID, choice="none")
        assert accepts(compiler, before + "<|channel|>final<|message|>")
        assert not accepts(compiler, before + SAID, choice="required")
        assert not accepts(compiler, before + "It is.")
        assert not accepts(compiler, before + SAID + "<|end|>")
    for choice in CHOICES:
        assert accepts(compiler, PREAMBLE + CALLS[0], choice=choice) == (choice == "auto")
    for unfinished in ("", "<|channel|>", THOUGHT, PREAMBLE, "<|channel|>analysis<|message|>hm"):
        assert not accepts(compiler, unfinished)


@pytest.mark.parametrize(
    ("content", "holds", "breaks"),
    [
        (JsonSchema.of({"enum": ["yes"]}), '"yes"', "yes"),
        (Regex("a+/|b\\/|\n"), "aa/", "aab"),
        (OneOf(("yes", 'n"o\x7f')), 'n"o\x7f', "no"),
    ],
)
def test_only_the_final_message_follows_the_response_format(compiler, content, holds, breaks):
    head = "<|channel|>final<|message|>"
    for options in ({"tools": (), "choice": "none"}, {"choice": "auto"}):
        assert accepts(compiler, THOUGHT + head + holds, content=content, **options)
        assert not accepts(compiler, THOUGHT + head + breaks, content=content, **options)
        assert not accepts(compiler, PREAMBLE + head + holds, content=content, **options)
        assert not accepts(compiler, holds, content=content, **options)
    assert accepts(compiler, CALLS[0], content=content)


def test_an_answer_continues_where_its_prompt_ended(compiler):
    opened = replace(HARMONY, opens="analysis")
    for rest in (SAID, CALLS[0]):
        assert accepts(compiler, "hm<|end|><|start|>assistant" + rest, opened)
        assert not accepts(compiler, rest, opened)
    said = replace(HARMONY, opens="final")
    yes = OneOf(("yes",))
    assert accepts(compiler, "yes", said, (), choice="none", content=yes)
    assert not accepts(compiler, SAID, said, (), choice="none", content=yes)


def test_without_channels_tools_combine_only_with_schemas():
    calling = Calling(FORMATS["hermes"], TOOLS)
    with pytest.raises(ConstraintError, match="exclude each other"):
        tool_call_grammar(calling, "auto", content=Regex("a"))
