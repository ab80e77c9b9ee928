"""JSON that is written piece by piece: what is long in it is made when its turn comes.

An answer with the likeliest tokens of each place is a thousand times longer than its text. Written
at once, it would be in memory three times, and one call would hold up everybody else.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

T = TypeVar("T")

HOLE: Any = Raw(b"\0")
"""Stands for what is long in what is written; no JSON text has this byte."""

PIECE_BYTES = 2**18  # a few milliseconds of work, where it is made of log-probabilities

MANY_EACH = 1024  # items of a list in a piece, where each is a number or a word

_encode = msgspec.json.encode


def filled(value: Any, fillings: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the JSON of a value, with what stands in its holes, in the order of these.

    Args:
        value: has as many holes as there are fillings.
        fillings: of each hole the JSON, in pieces.
    """
    for text, filling in zip(_encode(value).split(b"\0"), [*fillings, ()], strict=True):
        yield text
        yield from filling


def later(make: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
    """Yield pieces that are begun when the first of them is wanted."""
    yield from make()


def listed(items: Iterable[Any], num_each: int) -> Iterator[bytes]:
    """Yield the JSON of a list, so many items in each piece."""
    left, mark = iter(items), b"["
    while some := list(islice(left, num_each)):
        yield mark + _encode(some)[1:-1]
        mark = b","
    yield b"]" if mark == b"," else b"[]"


def taken(items: list[T]) -> Iterator[T]:
    """Yield items and let each of them go; none is left in the list."""
    items.reverse()
    while items:
        yield items.pop()


def gathered(pieces: Iterator[bytes]) -> bytes:
    """Return the next pieces, together as large as one should be, or all that are left."""
    found, num_bytes = [], 0
    for piece in pieces:
        found.append(piece)
        num_bytes += len(piece)
        if num_bytes >= PIECE_BYTES:
            break
    return b"".join(found)
