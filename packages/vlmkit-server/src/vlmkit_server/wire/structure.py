"""Limits the structure of a JSON text, counted before it is decoded.

Decoding is one call during which no other thread runs, and its result is many times larger than the
text. Long strings cost almost nothing. Objects, lists and keys are expensive, and so are numbers
far from their rounded value: a power of ten can take forty microseconds.
"""

from collections.abc import Iterator

import numpy as np

from vlmkit.errors import RequestError

LIGHT_BYTES = 2**20
LIGHT_MARKS = 2**12
MAX_NODES = 2**17  # objects, lists and keys; decoding that many takes a tenth of a second
MAX_VALUES = 2**21  # of all lists and objects, such as a long prompt's tokens
MAX_DIGITS = 64  # consecutive digits: decoding time grows with their square
MAX_POWERS = 2**10  # numbers with an exponent
MAX_LONG = 2**17  # numbers whose many digits can make rounding slow
PIECE_BYTES = 2**18  # counted while no other thread runs
_NODES, _COMMA = b"{[:", b","
_QUOTE = ord('"')
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_LONG, _TOO_LONG, _POWER = b"0" * 16, b"0" * (MAX_DIGITS + 1), b"0e"


def is_light(body: bytes) -> bool:
    """Tell whether a text can be decoded at once: in a millisecond or two, whatever it contains."""
    if len(body) > LIGHT_BYTES:
        return False
    return len(body) <= LIGHT_MARKS or _num_of(body, _NODES + _COMMA) <= LIGHT_MARKS


def check_structure(body: bytes, what: str = "the body has", param: str | None = None) -> None:
    """Check that a text can be decoded in about a tenth of a second.

    Marks inside strings look like structure; they are told apart only where that matters.

    Args:
        body: the text.
        what: the subject of the refusal's sentence.
        param: the field with the text, if it is not the whole body.

    Raises:
        RequestError: its structure is too large.
    """
    if len(body) <= MAX_POWERS:
        return
    if _excess(_pieces(body)) is not None and (found := _excess(_outside(body))) is not None:
        raise RequestError(f"{what} over {found}", param=param, code="body_too_complex")


def _excess(pieces: Iterator[bytes]) -> str | None:
    """Return the limit that is exceeded, or None."""
    num_nodes = num_commas = num_powers = num_long = 0
    before = b""
    for piece in pieces:
        num_nodes += _num_of(piece, _NODES)
        num_commas += piece.count(_COMMA)
        numbers = before + piece.translate(_ALIKE)
        num_long += numbers.count(_LONG)
        num_powers += numbers.count(_POWER)
        before = numbers[-MAX_DIGITS:]
        num_long -= before.count(_LONG)
        num_powers -= before.count(_POWER)
        if num_nodes > MAX_NODES:
            return f"{MAX_NODES} objects, lists and keys"
        if num_commas > MAX_VALUES:
            return f"{MAX_VALUES} values"
        if _TOO_LONG in numbers:
            return f"{MAX_DIGITS} digits in a number"
        num_numbers = num_nodes + num_commas + 1  # at most: base64 of images looks like powers
        if min(num_powers, num_numbers) > MAX_POWERS:
            return f"{MAX_POWERS} numbers with an exponent"
        if min(num_long, num_numbers) > MAX_LONG:
            return f"{MAX_LONG} numbers of {len(_LONG)} digits or more"
    return None


def _num_of(piece: bytes, marks: bytes) -> int:
    return len(piece) - len(piece.translate(None, marks))


def _pieces(body: bytes) -> Iterator[bytes]:
    return (body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES))


def _outside(body: bytes) -> Iterator[bytes]:
    """Yield the text outside strings, with the strings' last quotes."""
    is_inside, rest = False, b""
    for piece in _pieces(body):
        piece = rest + piece  # noqa: PLW2901
        is_cut = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1  # it escapes the next character
        rest = b"\\" if is_cut else b""
        piece = piece.removesuffix(rest).replace(b"\\\\", b"").replace(b'\\"', b"")  # noqa: PLW2901
        letters = np.frombuffer(piece, np.uint8)
        inside = np.logical_xor.accumulate(letters == _QUOTE) ^ is_inside
        yield letters[~inside].tobytes()
        if inside.size:
            is_inside = bool(inside[-1])
