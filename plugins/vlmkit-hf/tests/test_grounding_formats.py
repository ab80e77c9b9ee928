"""Grounding formats of families, and marks of regions that are special tokens."""

from collections.abc import Callable

import pytest

import zoo
from vlmkit.running.engine_loop.grounding import AnswerGrounding
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit_hf.text_side.tokenizer import HfTokenizer

TokenizerOf = Callable[[str], HfTokenizer]
UNKNOWN = {"llava", "llava_next", "idefics3", "smolvlm", "gemma3", "mistral3"}


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
def test_a_tokenizer_has_the_grounding_format_of_its_family(
    tokenizer_of: TokenizerOf, name: str
) -> None:
    tokenizer = tokenizer_of(name)
    image = Image.open(zoo.picture(1))
    form = tokenizer.prompt([Message.of("user", "Where?", [image])]).place_format

    assert (form is None) == (name in UNKNOWN)
    assert ("return_places" in tokenizer.honours) == (name not in UNKNOWN)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "qwen2_vl",
            "<|object_ref_start|>a cat<|object_ref_end|><|box_start|>(250,0),(500,500)<|box_end|>",
        ),
        ("qwen3_vl", '{"bbox_2d": [250, 0, 500, 500], "label": "a cat"}'),
        ("internvl", "<ref>a cat</ref><box>[[250, 0, 500, 500]]</box>"),
        ("paligemma", "<loc0000><loc0256><loc0512><loc0512> a cat"),
    ],
)
def test_regions_are_found_in_the_tokens_of_an_answer(
    tokenizer_of: TokenizerOf, name: str, said: str
) -> None:
    tokenizer = tokenizer_of(name)
    image = Image.open(zoo.picture(1, 80, 60))
    prompt = tokenizer.prompt([Message.of("user", "Where is the cat?", [image])])
    assert prompt.place_format is not None
    reader = tokenizer.reader(prompt, shows_special=True)
    places = AnswerGrounding(reader, prompt, prompt.place_format)
    for token_id in zoo.processor(name).tokenizer(said, add_special_tokens=False)["input_ids"]:
        places.push(token_id)

    assert places.found() == (GroundedRegion("a cat", box=(20.0, 0.0, 40.0, 30.0)),)
