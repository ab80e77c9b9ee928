"""Tool calls that a chat template renders parse back to the same calls."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from vlmkit.types.delta import reasoning_of, text_of, tool_calls_of
from vlmkit.types.message import Message, ReasoningPart, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from zoo.calls import STRANGE, TEMPLATES, vocabulary

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
CALLS = [
    ToolCallPart("aBcDeF123", "weather", json.dumps({"city": 'Köln "x"\n<', "days": 3})),
    ToolCallPart("aBcDeF124", "weather", json.dumps({"city": "7", "near": [True, {"x": None}]})),
]
TokenizerWith = Callable[[Any, str], HfTokenizer]


def tokenizer(tokenizer_with: TokenizerWith, name: str, *, has_tokens: bool) -> HfTokenizer:
    return tokenizer_with(vocabulary(has_tokens=has_tokens), TEMPLATES[name])


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_in_the_templates_format_parses_to_the_message(
    tokenizer_with: TokenizerWith, name: str, has_tokens: bool
) -> None:
    model = tokenizer(tokenizer_with, name, has_tokens=has_tokens)
    check_round_trip(model, said="" if name == "llama" else "I look.", thought="hm")


@pytest.mark.parametrize("name", ["qwen3", "qwen3_vl"])
def test_tool_calls_rendered_by_each_family_parse_back(
    tokenizer_of: Callable[[str], HfTokenizer], name: str
) -> None:
    check_round_trip(tokenizer_of(name), said="I look.", thought="hm" if name == "qwen3" else "")


def check_round_trip(model: HfTokenizer, *, said: str, thought: str) -> None:
    """Render an answer with a template, parse it, and require the same message."""
    parts = [
        *([ReasoningPart(thought)] if thought else []),
        *([TextPart(said)] if said else []),
        *CALLS,
    ]
    question = [Message.of("user", "hello")]
    prompt = model.prompt(question, tools=TOOLS)
    whole = model.prompt([*question, Message("assistant", tuple(parts))], tools=TOOLS)
    generation = len(model.encode("assistant\n")) + 1
    written = whole.token_ids[len(prompt) : len(whole) - generation]
    end = next(place for place, i in enumerate(written) if i in model.eos_ids)
    reader = model.reader(prompt)
    deltas = [d for token_id in written[:end] for d in reader.push(token_id)] + [*reader.finish()]
    assert (reasoning_of(deltas), text_of(deltas)) == (thought, said)
    called = [(call.name, call.parsed()) for call in tool_calls_of(deltas)]
    assert called == [(call.name, call.parsed()) for call in CALLS]


def test_tools_are_refused_if_the_templates_call_format_is_unknown(
    tokenizer_with: TokenizerWith,
) -> None:
    model = tokenizer_with(vocabulary(has_tokens=False), STRANGE)
    prompt = model.prompt([Message.of("user", "hi")], tools=TOOLS)
    assert prompt.calling is None
