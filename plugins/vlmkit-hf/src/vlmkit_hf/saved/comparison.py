"""Compares two tokenizers of one model on texts, conversations and images."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import PIL.Image

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.types.image import Image
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.message import ImagePart, Message
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_hf.text_side.tokenizer import HfTokenizer

TEXT = (
    'It\'s  "ne\u0301e" \n\t \u4f60\u597d, \U0001f642! \u00a0 12345 def f(x):\r\n    '
    "return \ufb01 <|im_end|></s><image> "
)
SIZES = ((64, 48), (40, 88), (96, 96), (300, 1100), (1100, 290), (701, 899), (17, 230), (520, 640))
TOKENS = (64, 1000)  # requested tokens of an image
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks up.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CONVERSATIONS = (
    [Message.of("user", TEXT)],
    [Message.of("system", "Be short."), Message.of("user", "Why?")],
    [
        Message.of("user", "Hi."),
        Message.of("assistant", "<think>Hm</think> Yes."),
        Message.of("user", TEXT),
    ],
)
Query = Callable[[HfTokenizer], Any]


def difference(one: HfTokenizer, other: HfTokenizer) -> str:
    """Return the first difference between two tokenizers; empty if there is none."""
    for name, query in _queries(one):
        if not _are_equal(_result_of(query, one), _result_of(query, other)):
            return f"{name} would not be the same"
    return ""


def _queries(tokenizer: HfTokenizer) -> Iterator[tuple[str, Query]]:
    for name in ("vocab_size", "eos_ids", "banned_ids", "honours"):
        yield name.replace("_", " "), lambda it, name=name: getattr(it, name)  # type: ignore[misc]
    yield "texts", lambda it: [it.encode(TEXT, adds_special=adds) for adds in (False, True)]
    yield "answers", lambda it: it.decode(range(0, it.vocab_size, 1 + it.vocab_size // 2000))
    yield "tokens", lambda it: [it.token_bytes(i) for i in range(0, it.vocab_size, 97)]
    for messages in CONVERSATIONS:
        for tools in (None, [TOOL]):
            yield "prompts", lambda it, m=messages, t=tools: it.prompt(m, tools=t)  # type: ignore[misc]
    for size in SIZES:
        image = Image.open(_image_of(size))
        for shown in _options(tokenizer):
            part = ImagePart(image, shown)
            messages = [Message.of("user", "What?", [part, part])]
            for options in (PromptOptions(), PromptOptions(light=True)):
                yield (
                    f"a picture of {size[1]}x{size[0]}",
                    lambda it, m=messages, o=options: it.prompt(m, options=o),  # type: ignore[misc]
                )


def _options(tokenizer: HfTokenizer) -> Iterator[ImageOptions]:
    yield PLAIN_IMAGE
    if "image_detail" in tokenizer.honours:
        yield from (ImageOptions(wanted_tokens=most) for most in TOKENS)


def _image_of(size: tuple[int, int]) -> PIL.Image.Image:
    """Return an image with all levels and with edges; the same for equal sizes."""
    random = np.random.default_rng(sum(size))
    coarse = random.integers(0, 256, (-(-size[0] // 7), -(-size[1] // 5), 3), np.uint8)
    fine = random.integers(0, 32, (*size, 3), np.uint8)
    pixels = coarse.repeat(7, 0).repeat(5, 1)[: size[0], : size[1]] ^ fine
    return PIL.Image.fromarray(np.ascontiguousarray(pixels))


def _result_of(query: Query, tokenizer: HfTokenizer) -> Any:
    """Return the result of a query; a refusal is a result, too."""
    try:
        return query(tokenizer)
    except VlmkitError as error:
        return type(error), str(error)


def _are_equal(one: Any, other: Any) -> bool:
    if not (isinstance(one, Prompt) and isinstance(other, Prompt)):
        return bool(one == other)
    if len(one.media) != len(other.media):
        return False
    fields = [
        (
            *(it.token_ids, it.opens_reasoning, it.reasoning_marks),
            *(it.calling, it.channels, it.place_format),
        )
        for it in (one, other)
    ]
    return fields[0] == fields[1] and all(map(_are_slots_equal, one.media, other.media))


def _are_slots_equal(one: MediaSlot, other: MediaSlot) -> bool:
    fields = [(it.start, it.stop, it.digest, it.num_features, it.transform) for it in (one, other)]
    if fields[0] != fields[1] or one.inputs.keys() != other.inputs.keys():
        return False
    pairs = ((np.asarray(one.inputs[name]), np.asarray(other.inputs[name])) for name in one.inputs)
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)
