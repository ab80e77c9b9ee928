"""Keys of the prefixes of a prompt, from the content of a request, without a tokenizer.

Two requests share a key exactly if their content is the same up to there, in the same scope. So the
longest common sequence of keys tells which cached prefix a worker may hold. Sizes in tokens are
estimates, because the tokens of a prompt are known to the worker alone.
"""

import hashlib
from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from vlmkit.types.image import Image
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.request import Request

PIECE_CHARS = 512
"""Text is cut into pieces of this size, so that equal prefixes of long texts share keys."""
PIECE_TOKENS = 128
LARGE_BYTES = 2**18
"""Content whose digest takes so long that an event loop should not wait for it."""
_encode = msgspec.msgpack.Encoder(enc_hook=repr, order="sorted").encode


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a prompt.

    Attributes:
        key: of the prompt up to the end of this part, including its scope.
        num_chars: number of characters of a text.
        num_tokens: number of tokens, where they are known.
        image: the digest of an image or a file together with its scope; empty for a text.
        role: the role of the message that begins with this part; empty for other parts.
    """

    key: bytes
    num_chars: int = 0
    num_tokens: int = 0
    image: bytes = b""
    role: str = ""


def segments(request: Request) -> list[Segment]:
    """Return the parts of a request's prompt, in order."""
    scope = _digest(b"", _encode([request.tenant, request.cache_salt, request.fields]))
    key = _digest(scope, _encode([request.tools, request.options]))
    found = []
    for content, segment in _contents(request, scope):
        key = _digest(key, content)
        found.append(replace(segment, key=key))
    return found


def first_question(parts: Seq[Segment]) -> bytes:
    """Return the key of a prompt up to the end of its first message of a user.

    All requests of a conversation share it. That of a prompt without messages is the key of its
    first part.
    """
    ends = [i for i, part in enumerate(parts) if part.role]
    if not ends:
        return parts[0].key if parts else b""
    first = next((n for n, i in enumerate(ends) if parts[i].role == "user"), len(ends) - 1)
    return parts[ends[first + 1] - 1 if first + 1 < len(ends) else -1].key


def affinity_of(parts: Seq[Segment]) -> bytes:
    """Return what requests share that should meet: the first image, or the first question."""
    images = (each.image for each in parts if each.image)
    return next(images, None) or first_question(parts)


def num_content_bytes(request: Request) -> int:
    """Return the size of what :func:`segments` reads: images, files and texts."""
    parts = [part for message in request.messages for part in message.parts]
    sizes = [len(part.image.content) for part in parts if isinstance(part, ImagePart)]
    sizes += [len(part.data) for part in parts if isinstance(part, FilePart)]
    sizes += [len(part.text) for part in parts if isinstance(part, TextPart)]
    sizes.append(len(request.text or ""))
    return sum(sizes) + sum(len(placed.image.content) for placed in request.images)


def _contents(request: Request, scope: bytes) -> Iterator[tuple[bytes, Segment]]:
    """Yield the content of each part, and its size."""
    for message in request.messages:
        yield from _of_message(message, scope)
    if request.text is not None:
        yield from _of_text(request.text)
    token_ids = request.token_ids or ()
    for start in range(0, len(token_ids), PIECE_TOKENS):
        piece = list(token_ids[start : start + PIECE_TOKENS])
        yield _encode(piece), Segment(b"", num_tokens=len(piece))
    for placed in request.images:
        yield _of_image(placed.image, (placed.options, None), scope)


def _of_message(message: Message, scope: bytes) -> Iterator[tuple[bytes, Segment]]:
    yield _encode([message.role, message.call_id]), Segment(b"", num_chars=16, role=message.role)
    for part in message.parts:
        if isinstance(part, ImagePart):
            yield _of_image(part.image, (part.options, part.page), scope)
        elif isinstance(part, FilePart):
            digest = _digest(hashlib.sha256(bytes(part.data)).digest(), _encode(str(part.pages)))
            yield digest, Segment(b"", image=_digest(scope, digest))
        elif isinstance(part, MediaPart):
            yield part.media.digest, Segment(b"", image=_digest(scope, part.media.digest))
        elif isinstance(text := getattr(part, "text", None), str):
            yield from _of_text(text)
        else:
            content = _encode(part)
            yield content, Segment(b"", num_chars=len(content))


def _of_text(text: str) -> Iterator[tuple[bytes, Segment]]:
    for start in range(0, len(text), PIECE_CHARS):
        piece = text[start : start + PIECE_CHARS]
        yield piece.encode(errors="surrogatepass"), Segment(b"", num_chars=len(piece))


def _of_image(image: Image, options: Any, scope: bytes) -> tuple[bytes, Segment]:
    digest = image.file_digest or image.digest
    content = _digest(digest, repr(options).encode())
    return content, Segment(b"", image=_digest(scope, content))


def _digest(before: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(before + content, digest_size=16).digest()
