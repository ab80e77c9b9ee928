"""Base64 of files, decoded so that other threads run meanwhile."""

import binascii

PIECE_CHARS = 2**20  # a multiple of 4, so that pieces decode alone


def from_base64(text: str, start: int = 0) -> bytes:
    """Decode the end of a text in pieces: the decoder lets no other thread run meanwhile.

    Raises:
        ValueError: it is no base64.
    """
    if 0 <= text.find("=", start) < len(text) - 2:
        raise ValueError("padding stands before the end")
    places = range(start, len(text), PIECE_CHARS)
    pieces = (text[place : place + PIECE_CHARS] for place in places)
    return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)
