"""Finding the places that an answer names, in pixels of the picture that it speaks of.

What a model writes may be anything: what is no place is passed over, and what lies outside of the
picture is brought to its edge.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence as Seq
from functools import lru_cache
from itertools import islice
from typing import Any

from vlmkit.interfaces.grounding_format import GroundingFormat, JsonGrounding, MarkedGrounding
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.transform import Transform

MAX_CHARS = 2**16
"""The end of a longer text is not looked at."""

MAX_PLACES = 1024

_OBJECT = re.compile(r"\{[^{}]{1,2000}\}")
_NUMBER = re.compile(r"\d{1,9}")


def find_regions(
    text: str, form: GroundingFormat, transform: Transform
) -> tuple[GroundedRegion, ...]:
    """Return the places in a text, in order.

    Args:
        text: an answer, special tokens included.
        form: how the model writes places.
        transform: what was done to the picture.
    """
    text = text[:MAX_CHARS]
    found = _marked(text, form) if isinstance(form, MarkedGrounding) else _in_json(text, form)
    places = (_place(label, numbers, form.extent, transform) for label, numbers in found)
    return tuple(islice(places, MAX_PLACES))


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


def _place(
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
