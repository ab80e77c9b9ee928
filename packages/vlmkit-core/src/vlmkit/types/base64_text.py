"""Decoding of base64, alone or in ``data:`` URLs, without blocking other threads for long."""

import binascii
from collections.abc import Iterator

PIECE_CHARS = 2**20  # a multiple of 4, so that pieces decode alone

_STANDARD = str.maketrans("-_", "+/", " \t\r\n")


def is_data_url(text: str) -> bool:
    """Return whether a text is a ``data:`` URL; schemes ignore case (RFC 3986, section 3.1)."""
    return text[:5].lower() == "data:"


def from_base64(text: str, start: int = 0) -> bytes:
    """Decode a text from position ``start``, in pieces, because the decoder holds the GIL.

    Accepts white space, missing padding and the URL-safe alphabet (RFC 4648, section 5): clients
    send them, and they are unambiguous.

    Raises:
        ValueError: the text is not base64.
    """
    try:
        return _strict(text, start)
    except ValueError:  # binascii.Error is one
        plain = "".join(piece.translate(_STANDARD) for piece in _pieces(text, start))
        return _strict(plain + "=" * (-len(plain) % 4))


def _strict(text: str, start: int = 0) -> bytes:
    if 0 <= text.find("=", start) < len(text) - 2:
        raise ValueError("padding stands before the end")
    decoded = (binascii.a2b_base64(each, strict_mode=True) for each in _pieces(text, start))
    return b"".join(decoded)


def _pieces(text: str, start: int) -> Iterator[str]:
    return (text[at : at + PIECE_CHARS] for at in range(start, len(text), PIECE_CHARS))
