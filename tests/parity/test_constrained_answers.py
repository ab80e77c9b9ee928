"""Random models keep to a JSON schema, with and without images, when tokens are sampled."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vlmkit
from vlmkit.types.constraint import JsonSchema
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from zoo.picture import picture

pytest.importorskip("vlmkit_hf")
pytestmark = pytest.mark.torch

NUM_ANSWERS = 40
KIND = {"enum": ["square", "circle", "triangle"]}
SCHEMA = JsonSchema.of(
    {
        "type": "object",
        "properties": {
            "objects": {"type": "array", "items": KIND, "minItems": 1, "maxItems": 3},
            "description": {"type": "string", "maxLength": 6},
            "is_grey": {"type": "boolean"},
        },
        "required": ["objects", "description", "is_grey"],
        "additionalProperties": False,
    }
)


def is_valid(text: str) -> bool:
    said = json.loads(text)
    return (
        list(said) == ["objects", "description", "is_grey"]
        and 1 <= len(said["objects"]) <= 3
        and set(said["objects"]) <= set(KIND["enum"])
        and len(said["description"]) <= 6
        and isinstance(said["is_grey"], bool)
    )


def asked(model: Any, pictures: list[Any]) -> list[tuple[str, str | None, tuple[Any, ...]]]:
    messages = [Message.of("user", "How many objects?", [Image.open(p) for p in pictures])]
    request = model.request(
        messages, constraint=SCHEMA, temperature=1.0, seed=7, n=NUM_ANSWERS, max_tokens=160
    )
    done = model.submit(request).result()
    return [(c.text, c.finish_reason, tuple(c.samples)) for c in done.choices]


@pytest.mark.parametrize("name", ["llama", "llava", "qwen2_vl"])
def test_constrained_answers_are_valid_and_drafts_change_no_token(
    name: str, saved: Callable[[str], Path], one_thread: None
) -> None:
    pictures = [] if name == "llama" else [picture(1)]
    engine = {"use": "torch", "device": "cpu", "cache_tokens": 16_384}
    with vlmkit.load(saved(name), engine=engine) as model:
        drafting = model.runner._loop._steps._drafting
        found = asked(model, pictures)
        counters = model.runner.stats().counters
        before = counters["num_steps"]
        assert counters["num_drafts_accepted"] == counters["num_tokens_drafted"] > 0
        drafting._limits = replace(drafting._limits, max_draft_tokens=0)
        expected = asked(model, pictures)
        num_steps = model.runner.stats().counters["num_steps"] - before
    assert found == expected
    assert [reason for _, reason, _ in found] == ["stop"] * NUM_ANSWERS
    assert sum(is_valid(text) for text, _, _ in found) == NUM_ANSWERS
    assert before < num_steps
