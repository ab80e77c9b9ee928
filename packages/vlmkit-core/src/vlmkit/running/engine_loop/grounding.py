"""Boxes and points that an answer names, found when it has ended, for requests that want them.

A model may write anything. What is no valid place is skipped, and coordinates outside the picture
are clamped to its edge.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence as Seq
from functools import lru_cache
from itertools import islice
from typing import Any

from vlmkit.errors import RequestError
from vlmkit.interfaces.grounding_format import GroundingFormat, JsonGrounding, MarkedGrounding
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.reader import AnswerReader
from vlmkit.interfaces.tokenizer import Option, Tokenizer
from vlmkit.types.delta import Delta, text_of
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.transform import Transform

PLACES: Option = "return_places"
MAX_CHARS = 2**16
"""Of an answer that are searched."""

MAX_REGIONS = 1024

_OBJECT = re.compile(r"\{[^{}]{1,2000}\}")
_NUMBER = re.compile(r"\d{1,9}")


class AnswerGrounding:
    """Finds the regions that one answer names.

    Args:
        reader: a new reader that shows special tokens, since some families mark regions by them.
        prompt: the prompt of the answer, which has one image.
        form: how the model writes regions.
    """

    def __init__(self, reader: AnswerReader, prompt: Prompt, form: GroundingFormat) -> None:
        self._reader = reader
        self._form = form
        self._transform = next(slot.transform for slot in prompt.media if slot.kind == "image")
        self._deltas: list[Delta] = []

    def push(self, token_id: int) -> None:
        """Take one token."""
        self._deltas += self._reader.push(token_id)

    def found(self) -> tuple[GroundedRegion, ...]:
        """Return the regions of the answer, which has ended."""
        if self._transform is None:
            return ()
        text = text_of([*self._deltas, *self._reader.finish()])
        return find_regions(text, self._form, self._transform)


def check_grounding(prompt: Prompt) -> None:
    """Check that regions in the answer to a prompt can be related to an image.

    Raises:
        RequestError: the prompt does not have exactly one image, or its transform is unknown.
    """
    shown = [slot for slot in prompt.media if slot.kind == "image"]
    if len(shown) != 1:
        raise RequestError(
            f"{PLACES} needs a conversation with one image, which places are meant of; this one "
            f"has {len(shown)}",
            param=PLACES,
        )
    if shown[0].transform is None:
        raise RequestError(
            f"{PLACES} is not supported: it is not known how this model is shown pictures",
            param=PLACES,
            code="unsupported_parameter",
        )


def answer_grounding(prompt: Prompt, tokenizer: Tokenizer) -> AnswerGrounding | None:
    """Return what finds the regions of an answer; None if the request does not want them."""
    if prompt.place_format is None:
        return None
    return AnswerGrounding(
        tokenizer.reader(prompt, shows_special=True), prompt, prompt.place_format
    )


def find_regions(
    text: str, form: GroundingFormat, transform: Transform
) -> tuple[GroundedRegion, ...]:
    """Return the regions in a text, in order.

    Args:
        text: an answer, special tokens included.
        form: how the model writes regions.
        transform: how the image was resized and tiled.
    """
    text = text[:MAX_CHARS]
    found = _marked(text, form) if isinstance(form, MarkedGrounding) else _in_json(text, form)
    regions = (_region(label, numbers, form.extent, transform) for label, numbers in found)
    return tuple(islice(regions, MAX_REGIONS))


def _marked(text: str, form: MarkedGrounding) -> Iterator[tuple[str, list[float]]]:
    for match in _compiled(form.pattern).finditer(text):
        label = (match.groupdict().get("label") or "").strip()
        numbers = [float(number) for number in _NUMBER.findall(match["places"])]
        for start in range(0, len(numbers) - form.num_each + 1, form.num_each):
            own = numbers[start : start + form.num_each]
            if form.is_row_first:
                own = [number for pair in zip(own[1::2], own[::2], strict=True) for number in pair]
            yield label, own


def _in_json(text: str, form: JsonGrounding) -> Iterator[tuple[str, list[float]]]:
    for match in _OBJECT.finditer(text):
        try:
            thing: dict[str, Any] = json.loads(match[0])
        except (ValueError, RecursionError):
            continue
        label = thing.get(form.label)
        for key, num in ((form.box, 4), (form.point, 2)):
            numbers: Any = thing.get(key)
            if _are_numbers(numbers, num):
                yield label if isinstance(label, str) else "", numbers


def _are_numbers(value: Any, num: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == num
        and all(type(number) in (int, float) and abs(number) < 1e9 for number in value)
    )


def _region(
    label: str, numbers: Seq[float], extent: int | None, transform: Transform
) -> GroundedRegion:
    height, width = transform.upright_size
    vertical, horizontal = transform.scale
    across = 1 / horizontal if extent is None else width / extent
    down = 1 / vertical if extent is None else height / extent

    def on_picture(number: float, ratio: float, most: int) -> float:
        value = number * ratio
        return round(min(max(value, 0.0), float(most)), 2) if math.isfinite(value) else 0.0

    xs = [on_picture(number, across, width) for number in numbers[::2]]
    ys = [on_picture(number, down, height) for number in numbers[1::2]]
    if len(numbers) == 2:
        return GroundedRegion(label, point=(xs[0], ys[0]))
    return GroundedRegion(label, box=(min(xs), min(ys), max(xs), max(ys)))


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> "re.Pattern[str]":
    return re.compile(pattern)
