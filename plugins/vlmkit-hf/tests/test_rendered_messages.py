"""A rendered answer parses back to its message, however it is split into tokens."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import dropwhile, pairwise, takewhile
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import zoo
from vlmkit.formats.tool_call_grammar import tool_call_grammar
from vlmkit.interfaces.constraint import Vocabulary
from vlmkit.interfaces.prompt import Prompt
from vlmkit.types.delta import Delta, reasoning_of, text_of, tool_calls_of
from vlmkit.types.message import Message, ReasoningPart, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart
from vlmkit.types.tool_choice import NamedTool
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from zoo.calls import TEMPLATES, vocabulary

TokenizerWith = Callable[[Any, str], HfTokenizer]

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "near": {"type": "array", "items": {"type": "boolean"}},
    },
    "required": ["city", "days", "near"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "lookup", "description": "", "parameters": SCHEMA},
}
ASKED = [Message.of("user", "hello")]
CALLING = {"gpt_oss", "qwen3", "qwen3_vl"}
MOST_CALLS = {"gpt_oss": 1}
"""The maximum number of calls in an answer, for families where a call ends it."""
PLAIN = sorted({*zoo.NAMES_TEXT, *zoo.NAMES_VISION} - {"paligemma"})
"""Families with conversations of several turns."""
PIECES = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[ARGS]", "{", '"', "\n", "é", "🙂")
words = st.lists(st.sampled_from((*PIECES, "a", "b ", "1", "so")), min_size=1, max_size=8)
said = words.map("".join).map(str.strip).filter(bool)
city = st.lists(st.sampled_from(("Köln", '"', "\\", " ", "<", "7", "🙂")), max_size=4).map("".join)
fits = st.fixed_dictionaries(
    {"city": city, "days": st.integers(-99, 10**6), "near": st.lists(st.booleans(), max_size=3)}
).map(lambda own: {key: own[key] for key in SCHEMA["properties"]})
few = settings(max_examples=6, suppress_health_check=list(HealthCheck))


def read(model: HfTokenizer, prompt: Prompt, ids: Sequence[int]) -> tuple[str, str, list[Any]]:
    """Return the reasoning, text and calls of an answer of tokens."""
    reader = model.reader(prompt)
    deltas: list[Delta] = [d for i in ids for d in reader.push(i)] + [*reader.finish()]
    calls = [(call.name, call.parsed()) for call in tool_calls_of(deltas)]
    return reasoning_of(deltas), text_of(deltas), calls


def written(
    model: HfTokenizer, parts: Sequence[Any], tools: Sequence[Any] | None
) -> tuple[Prompt, list[int]]:
    """Return the prompt of an answer, and the answer's tokens in the template without its end."""
    prompt = model.prompt(ASKED, tools=tools)
    answered = [*ASKED, Message("assistant", tuple(parts))]
    ends = PromptOptions(add_generation_prompt=False)
    whole = model.prompt(answered, tools=tools, options=ends)
    pairs = zip(prompt.token_ids, whole.token_ids, strict=False)
    num_alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    ids = whole.token_ids[num_alike:]
    return prompt, list(takewhile(lambda token_id: token_id not in model.eos_ids, ids))


def cut_again(model: HfTokenizer, ids: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return other tokens of the same text: pieces between control tokens are encoded apart."""
    control = {i for i in ids if not model.decode([i]) or len(model.token_bytes(i)) > 4}
    made: list[int] = []
    start = 0
    for stop in [n for n, i in enumerate(ids) if i in control] + [len(ids)]:
        text = model._backend.decode(list(ids[start:stop]), skip_special_tokens=False)
        cuts = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
        for first, last in pairwise(cuts):
            made += model.encode(text[first:last])
        made += ids[stop : stop + 1]
        start = stop + 1
    return made


def parts_of(thought: str, text: str, calls: Sequence[Any]) -> list[Any]:
    return [
        *([ReasoningPart(thought)] if thought else []),
        *([TextPart(text)] if text else []),
        *(
            ToolCallPart(f"aBcDeF12{n}", "lookup", json.dumps(arguments, ensure_ascii=False))
            for n, arguments in enumerate(calls)
        ),
    ]


@pytest.fixture(scope="session")
def model_of(
    tokenizer_of: Callable[[str], HfTokenizer], tokenizer_with: TokenizerWith
) -> Callable[[str], HfTokenizer]:
    @functools.cache
    def model(name: str) -> HfTokenizer:
        if name in CALLING:
            return tokenizer_of(name)
        return tokenizer_with(vocabulary(has_tokens=True), TEMPLATES[name])

    return model


@pytest.mark.parametrize("name", [*sorted(CALLING), *TEMPLATES])
def test_a_rendered_message_parses_back_however_it_is_split(name, model_of):
    model = model_of(name)
    has_reasoning, has_text = name != "qwen3_vl", name not in ("llama", "granite")

    @few
    @given(
        thought=said if has_reasoning else st.just(""),
        text=st.just("") | said if has_text else st.just(""),
        calls=st.lists(fits, min_size=1, max_size=MOST_CALLS.get(name, 3)),
        places=st.lists(st.integers(0, 200), max_size=8),
    )
    def check(thought, text, calls, places):
        prompt, ids = written(model, parts_of(thought, text, calls), [TOOL])
        expected = thought, text, [("lookup", arguments) for arguments in calls]
        assert read(model, prompt, ids) == expected
        assert read(model, prompt, cut_again(model, ids, places)) == expected

    check()


def wrong(arguments, draw):
    """Return arguments that violate the schema."""
    changes = (
        lambda own: own | {"days": "x3"},
        lambda own: own | {"days": None},
        lambda own: own | {"near": [1]},
        lambda own: own | {"more": True},
        lambda own: {key: own[key] for key in own if key != "days"},
        lambda own: {"days": own["days"], "near": own["near"]},
    )
    return draw(st.sampled_from(changes))(arguments)


def vocabulary_of(model):
    """Return the vocabulary as a pipeline passes it to a compiler."""
    silent = model.eos_ids | model.banned_ids
    token_bytes = [
        b"" if i in silent or not model.decode([i]) else model.token_bytes(i)
        for i in range(model.vocab_size)
    ]
    return Vocabulary(token_bytes, model.encode)


@pytest.mark.parametrize(
    "name", sorted({*CALLING, *TEMPLATES} - {"mistral"})
)  # the template writes ids
def test_the_grammar_of_a_template_accepts_only_calls_within_the_schema(name, model_of):
    compilers = pytest.importorskip("vlmkit_guidance.compiler")
    model = model_of(name)
    compiler = compilers.GuidanceCompiler(vocabulary_of(model))
    calling = model.prompt(ASKED, tools=[TOOL]).calling
    compiled = [
        compiler.compile(tool_call_grammar(calling, choice))
        for choice in ("auto", "required", NamedTool("lookup"))
    ]

    def accepts(calls, tool="lookup"):
        made = [replace(part, name=tool) for part in parts_of("", "", calls)]
        _, ids = written(model, made, [TOOL])
        ids = list(dropwhile(lambda token_id: model.token_bytes(token_id).isspace(), ids))
        matchers = [make() for make in compiled]
        return {all(map(each.accept, ids)) and each.may_end for each in matchers}

    @few
    @given(calls=st.lists(fits, min_size=1, max_size=MOST_CALLS.get(name, 2)), data=st.data())
    def check(calls, data):
        assert accepts(calls) == {True}
        assert accepts(calls, "look_in") == {False}
        place = data.draw(st.integers(0, len(calls) - 1))
        calls[place] = wrong(calls[place], data.draw)
        assert accepts(calls) == {False}

    check()


@pytest.mark.parametrize("name", PLAIN)
def test_answers_of_all_families_parse_back(name, tokenizer_of):
    model = tokenizer_of(name)

    @few
    @given(text=said.filter(lambda text: "</think>" not in text))  # templates search for this
    def check(text):
        prompt, ids = written(model, [TextPart(text)], None)
        thought, read_text, calls = read(model, prompt, ids)
        assert (thought, read_text.strip(), calls) == ("", text, [])

    check()
