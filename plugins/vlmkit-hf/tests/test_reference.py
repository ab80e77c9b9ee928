"""Prompts equal those of transformers for the same conversation, for every family of the zoo."""

from collections.abc import Callable, Sequence
from typing import Any

import jinja2
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import zoo
from vlmkit.errors import RequestError
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, Role, TextPart
from vlmkit_hf.text_side.tokenizer import HfTokenizer

ALL = [*zoo.NAMES_VISION, *zoo.NAMES_TEXT]
TokenizerOf = Callable[[str], HfTokenizer]
Turn = tuple[Role, list[str | Any]]

few = settings(max_examples=25)
# No character that begins a control token: another file tests those texts.
words = st.text(
    st.one_of(
        st.sampled_from("aeioustrn .,:?!\n\n  "),
        st.characters(exclude_categories=["Cs"], exclude_characters="<["),
    ),
    max_size=30,
)


def ours(turns: Sequence[Turn]) -> list[Message]:
    return [
        Message(
            role,
            tuple(TextPart(p) if isinstance(p, str) else ImagePart(Image.open(p)) for p in parts),
        )
        for role, parts in turns
    ]


def theirs(name: str, turns: Sequence[Turn]) -> tuple[list[dict[str, Any]], list[Any]]:
    if name in zoo.NAMES_TEXT:
        return [{"role": role, "content": "".join(parts)} for role, parts in turns], []
    messages = [
        {
            "role": role,
            "content": [
                {"type": "text", "text": p} if isinstance(p, str) else {"type": "image"}
                for p in parts
            ],
        }
        for role, parts in turns
    ]
    return messages, [p for _, parts in turns for p in parts if not isinstance(p, str)]


def check_equal(name: str, tokenizer: HfTokenizer, turns: Sequence[Turn], **more: Any) -> None:
    """Check that the ids are equal, or that both sides refuse the conversation."""
    messages, images = theirs(name, turns)
    try:
        expected = zoo.reference(name, messages, images, **more)["input_ids"][0].tolist()
    except jinja2.TemplateError:
        with pytest.raises(RequestError):
            tokenizer.prompt(ours(turns), **more)
        return
    assert list(tokenizer.prompt(ours(turns), **more).token_ids) == expected


@pytest.mark.parametrize("name", [name for name in ALL if name != "paligemma"])
@few
@given(texts=st.lists(words, min_size=1, max_size=4), system=st.none() | words)
def test_ids_of_a_conversation_equal_the_reference(
    tokenizer_of: TokenizerOf, name: str, texts: list[str], system: str | None
) -> None:
    roles: list[Role] = ["user", "assistant"]
    turns: list[Turn] = [(roles[i % 2], [text]) for i, text in enumerate(texts)]
    if system is not None:
        turns.insert(0, ("system", [system]))
    check_equal(name, tokenizer_of(name), turns)


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
@pytest.mark.parametrize("order", ["it", "ti", "iit", "iti", "tii", "tit", "i", "itit"])
def test_ids_with_images_equal_the_reference(
    tokenizer_of: TokenizerOf, name: str, order: str
) -> None:
    originals = iter([zoo.picture(1, 60, 60), zoo.picture(2, 84, 40)])
    parts = [next(originals) if part == "i" else "What is the red one?" for part in order]
    check_equal(name, tokenizer_of(name), [("user", parts)])


@pytest.mark.parametrize("name", [name for name in zoo.NAMES_VISION if name != "paligemma"])
def test_ids_with_images_in_two_turns_equal_the_reference(
    tokenizer_of: TokenizerOf, name: str
) -> None:
    turns: list[Turn] = [
        ("user", [zoo.picture(1, 60, 60), "What is it?"]),
        ("assistant", ["A red square."]),
        ("user", [" And this? ", zoo.picture(2, 40, 96), "\n\nSay."]),
    ]
    check_equal(name, tokenizer_of(name), turns)


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
def test_each_images_arrays_equal_the_reference_for_that_image(
    tokenizer_of: TokenizerOf, name: str
) -> None:
    originals = [zoo.picture(1, 60, 60), zoo.picture(2, 84, 40)]
    prompt = tokenizer_of(name).prompt(ours([("user", [*originals, "What?"])]))

    for image, slot in zip(originals, prompt.media, strict=True):
        messages, images = theirs(name, [("user", [image, "What?"])])
        expected = zoo.reference(name, messages, images)
        assert "pixel_values" in slot.inputs
        for key, array in slot.inputs.items():
            np.testing.assert_array_equal(np.asarray(array), expected[key], err_msg=key)
            assert np.asarray(array).dtype == expected[key].dtype


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
def test_images_of_one_call_have_the_arrays_of_separate_calls(
    tokenizer_of: TokenizerOf, name: str
) -> None:
    originals = [zoo.picture(1, 60, 60), zoo.picture(2, 84, 40)]
    turns: list[Turn] = [("user", [*originals, "What?"])]
    slots = tokenizer_of(name).prompt(ours(turns)).media
    whole = zoo.reference(name, *theirs(name, turns))

    for key in slots[0].inputs:
        arrays = [np.asarray(slot.inputs[key]) for slot in slots]
        together = np.asarray(whole[key])
        if key == "pixel_attention_mask" or name in ("idefics3", "smolvlm"):
            arrays = [array[0] for array in arrays]  # images side by side, under one prompt
            together = together[0]
        start = 0
        for array in arrays:  # a common array may be padded to the largest image
            part = together[start : start + len(array)]
            kept = part[tuple(slice(0, size) for size in array.shape)]
            np.testing.assert_array_equal(kept, array, err_msg=key)
            start += len(array)


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
def test_a_slot_holds_all_tokens_of_its_image_and_as_many_placeholders_as_features(
    tokenizer_of: TokenizerOf, checkpoint_of: Callable[[str], Any], name: str
) -> None:
    tokenizer = tokenizer_of(name)
    config = checkpoint_of(name).config
    placeholder = config.get("image_token_id", config.get("image_token_index"))
    prompt = tokenizer.prompt(ours([("user", [zoo.picture(1), "or", zoo.picture(2, 90, 40)])]))

    for slot in prompt.media:
        inside = prompt.token_ids[slot.start : slot.stop]
        assert inside.count(placeholder) == slot.num_features
    inside_all = sum(slot.num_features for slot in prompt.media)
    assert prompt.token_ids.count(placeholder) == inside_all
    assert placeholder in tokenizer.banned_ids


TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": 'Find a "word", and say what it means: é',
        "parameters": {
            "type": "object",
            "properties": {"the word": {"type": "string", "description": "which\none"}},
            "required": ["the word"],
        },
    },
}


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3", "qwen3_moe", "gpt_oss"])
def test_tools_are_rendered_as_by_the_reference(tokenizer_of: TokenizerOf, name: str) -> None:
    turns: list[Turn] = [("system", ["Be brief."]), ("user", ["What does it mean?"])]
    check_equal(name, tokenizer_of(name), turns, tools=[TOOL])


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3"])
def test_a_tools_result_is_rendered_as_by_the_reference(
    tokenizer_of: TokenizerOf, name: str
) -> None:
    turns: list[Turn] = [
        ("user", ["What does it mean?"]),
        ("assistant", ["I look it up."]),
        ("tool", ['{"meaning": "a colour"}']),
    ]
    check_equal(name, tokenizer_of(name), turns)


@pytest.mark.parametrize(
    "answer",
    [
        "<think>\nIt is red.\n</think>\n\nRed.",
        "It is red.</think>Red.",
        "Red.",
        "<think></think>Red.",
    ],
)
@pytest.mark.parametrize("is_last", [True, False])
def test_earlier_reasoning_is_rendered_as_by_the_reference(
    tokenizer_of: TokenizerOf, answer: str, is_last: bool
) -> None:
    turns: list[Turn] = [("user", ["Which colour?"]), ("assistant", [answer])]
    if not is_last:
        turns.append(("user", ["Are you sure?"]))
    check_equal("qwen3", tokenizer_of("qwen3"), turns)
