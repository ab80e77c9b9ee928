"""Bodies of requests with images, and the paths of fields in them. No tests."""

import copy
import re
from collections.abc import Iterator
from typing import Any

Keys = tuple[str | int, ...]
"""Where a value is in a body: names of fields, and indexes of arrays."""

NEIGHBOURS = ((0, 1), (2, 1))
"""Numbers of other elements before and after one in an array."""


def difference(one: Any, other: Any) -> Keys:
    """Return where two bodies differ: the first such value that is no object and no array."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(key, value, other[key]) for key, value in one.items()]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(index, *values) for index, values in enumerate(zip(one, other, strict=True))]
    else:
        return ()
    return next((key, *difference(a, b)) for key, a, b in pairs if a != b)


def keys_of(path: str) -> Keys:
    """Return the keys of a path such as ``messages[0].content[2].image_url``."""
    found = re.findall(r"[^.\[\]]+|\[\d+\]", path)
    return tuple(int(each[1:-1]) if each.startswith("[") else each for each in found)


def among_others(body: Any, neighbour: Any, keys: Keys) -> Iterator[tuple[Any, Any, Keys]]:
    """Yield a body, and bodies with more elements in each array around a value.

    Args:
        body: the body.
        neighbour: the same body with another value, of which the more elements are.
        keys: where the value is.

    Yields:
        A body, the same with the other value, and where the value is in both.
    """
    yield body, neighbour, keys
    for depth, index in enumerate(keys):
        if not isinstance(index, int):
            continue
        more = _value(neighbour, keys[: depth + 1])
        for num_before, num_after in NEIGHBOURS:
            made = []
            for each in (body, neighbour):
                grown = copy.deepcopy(each)
                array = _value(grown, keys[:depth])
                array[index + 1 : index + 1] = [copy.deepcopy(more) for _ in range(num_after)]
                array[index:index] = [copy.deepcopy(more) for _ in range(num_before)]
                made.append(grown)
            yield made[0], made[1], (*keys[:depth], index + num_before, *keys[depth + 1 :])


def _value(body: Any, keys: Keys) -> Any:
    """Return the value at some keys."""
    for key in keys:
        body = body[key]
    return body
