"""The process that computes features: reads pictures from standard input, answers on its output.

A frame is a length in eight bytes and so many bytes: a picture's input in, its rows out. Imports
nothing of vlmkit, so that it may run with other packages, or be written in another language.
"""

import sys
from typing import IO

import numpy as np

HIDDEN = 8
LENGTH_BYTES = 8


def rows(content: bytes) -> bytes:
    """Return the embeddings of a picture, ``[rows, HIDDEN]`` float32. Your model goes here."""
    seen = np.frombuffer(content, np.uint8).astype(np.float32) / 255.0
    return seen.reshape(-1, HIDDEN).tobytes()


def write(stream: IO[bytes], content: bytes) -> None:
    """Write a frame."""
    stream.write(len(content).to_bytes(LENGTH_BYTES, "big") + content)


def read(stream: IO[bytes]) -> bytes | None:
    """Return a frame; None at the end, also where a frame breaks off."""
    head = stream.read(LENGTH_BYTES)
    num_bytes = int.from_bytes(head, "big")
    content = stream.read(num_bytes) if len(head) == LENGTH_BYTES else b""
    return content if len(head) == LENGTH_BYTES and len(content) == num_bytes else None


def main() -> None:
    """Answer frames until there are no more."""
    while (content := read(sys.stdin.buffer)) is not None:
        write(sys.stdout.buffer, rows(content))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
