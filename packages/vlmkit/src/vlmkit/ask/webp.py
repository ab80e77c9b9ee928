"""How large the picture of a WebP file is, told before its decoder is made: that takes all memory.

Says nothing of what is wrong with a file: that is the decoder's business.
"""

BEGIN, KIND = b"RIFF", b"WEBP"
SIDE = 0x3FFF


def size(content: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels; None where the file is another, or its header is not ours.

    By "WebP Container Specification" and "WebP Lossless Bitstream Specification" of Google, and by
    RFC 6386, section 9.1.
    """
    if not (content.startswith(BEGIN) and content[8:12] == KIND and len(content) >= 30):
        return None
    chunk = content[12:16]
    if chunk == b"VP8X":
        return 1 + _number(content[24:27]), 1 + _number(content[27:30])
    if chunk == b"VP8L":
        bits = _number(content[21:25])
        return 1 + (bits & SIDE), 1 + (bits >> 14 & SIDE)
    if chunk == b"VP8 ":
        return _number(content[26:28]) & SIDE, _number(content[28:30]) & SIDE
    return None


def _number(content: bytes) -> int:
    return int.from_bytes(content, "little")
