"""Encodes JSON piece by piece: long lists are encoded when their piece is sent.

An answer with the top log-probabilities of each token is a thousand times longer than its text.
Encoded at once, it would be in memory three times, and one call would delay all others.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

T = TypeVar("T")

HOLE: Any = Raw(b"\0")
"""A placeholder for a long value; JSON text never contains this byte."""

PIECE_BYTES = 2**18  # a few milliseconds of encoding log-probabilities

MANY_EACH = 1024  # list items in a piece, if each is a number or a word

_encode = msgspec.json.encode


def filled(value: Any, fillings: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the JSON of a value, with its holes replaced in order.

    Args:
        value: contains one ``HOLE`` for each filling.
        fillings: the JSON of each hole, in pieces.
    """
    for text, filling in zip(_encode(value).split(b"\0"), [*fillings, ()], strict=True):
        yield text
        yield from filling


def deferred(make: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
    """Yield pieces, and start to create them when the first one is requested."""
    yield from make()


def listed(items: Iterable[Any], num_each: int) -> Iterator[bytes]:
    """Yield the JSON of a list, with ``num_each`` items in each piece."""
    left, separator = iter(items), b"["
    while some := list(islice(left, num_each)):
        yield separator + _encode(some)[1:-1]
        separator = b","
    yield b"]" if separator == b"," else b"[]"


def drained(items: list[T]) -> Iterator[T]:
    """Yield items, and remove each from the list, so that it can be freed."""
    items.reverse()
    while items:
        yield items.pop()


def gathered(pieces: Iterator[bytes]) -> bytes:
    """Return the next pieces, joined up to the size of one, or all that are left."""
    found, num_bytes = [], 0
    for piece in pieces:
        found.append(piece)
        num_bytes += len(piece)
        if num_bytes >= PIECE_BYTES:
            break
    return b"".join(found)
