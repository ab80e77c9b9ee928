"""Outlined prompts: the tokens of an image, computed from its size alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import zoo
from vlmkit.errors import ImageError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.settings.images import ImageLimits
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_hf.images.calls import ProcessorCalls
from vlmkit_hf.images.outline import Outlines
from vlmkit_hf.images.side import ImageSide
from vlmkit_hf.text_side.tokenizer import HfTokenizer

TokenizerOf = Callable[[str], HfTokenizer]
ANY = ImageLimits(max_aspect_ratio=1e9)
sides = st.one_of(st.integers(2, 60), st.integers(2, 900))


def outlined(tokenizer: HfTokenizer, *shown: ImagePart, light: bool) -> Any:
    """Return the contents of an outlined prompt, or its error."""
    message = Message("user", (TextPart("What?"), *shown))
    try:
        made: Prompt = tokenizer.prompt([message], options=PromptOptions(light=light))
    except ImageError as error:
        return error.code, error.index
    places = [(slot.start, slot.stop, slot.num_features) for slot in made.media]
    return made.token_ids, places


def blank(size: tuple[int, int]) -> Image:
    pixel = np.full((1, 1, 3), 90, dtype=np.uint8)
    return Image.open(np.broadcast_to(pixel, (size[1], size[0], 3)), ANY)


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
@settings(max_examples=20)
@given(
    sizes=st.lists(st.tuples(sides, sides), min_size=1, max_size=2),
    options=st.builds(
        ImageOptions,
        max_tokens=st.one_of(st.none(), st.integers(1, 40)),
        wanted_tokens=st.one_of(st.none(), st.integers(1, 40)),
    ),
)
def test_an_outlined_prompt_has_the_tokens_of_a_full_one(
    tokenizer_of: TokenizerOf,
    name: str,
    sizes: list[tuple[int, int]],
    options: ImageOptions,
) -> None:
    tokenizer = tokenizer_of(name)
    whole = [ImagePart(blank(size), options) for size in sizes]
    light = [ImagePart(Image.of_size(size, ANY), options) for size in sizes]
    assert outlined(tokenizer, *light, light=True) == outlined(tokenizer, *whole, light=False)


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
def test_an_outlined_prompt_processes_no_image(
    tokenizer_of: TokenizerOf, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizer_of(name)
    part = ImagePart(Image.of_size((640, 480)))
    outlined(tokenizer, part, light=True)  # the processor runs once

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a picture was processed")

    monkeypatch.setattr(ProcessorCalls, "process", fail)
    _, ((start, stop, num_features),) = outlined(tokenizer, part, light=True)
    assert 0 < num_features <= stop - start


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "gemma3"])
def test_tokens_that_a_size_does_not_determine_come_from_the_processor(
    tokenizer_of: TokenizerOf, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outlines, "_computed", lambda *_: "")
    monkeypatch.setattr(ImageSide, "_outlines", _fresh, raising=False)
    tokenizer, size = tokenizer_of(name), (300, 200)
    light = outlined(tokenizer, ImagePart(Image.of_size(size)), light=True)
    assert light == outlined(tokenizer, ImagePart(blank(size)), light=False)


@property  # type: ignore[misc]
def _fresh(side: Any) -> Outlines:
    return Outlines(side._processor, side._calls.options, side._sizing, side._calls.process)


def test_a_family_that_crops_some_images_processes_each(
    tokenizer_of: TokenizerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizer_of("gemma3")
    side = tokenizer._images
    assert side is not None
    monkeypatch.setitem(side._calls.options, "do_pan_and_scan", True)
    monkeypatch.setattr(ImageSide, "_outlines", _fresh, raising=False)
    size = (900, 200)
    light = outlined(tokenizer, ImagePart(Image.of_size(size)), light=True)
    assert light == outlined(tokenizer, ImagePart(blank(size)), light=False)
