"""Parts of messages besides text and images: media of other kinds, and unopened files.

The media loader, the tokenizer and the encoder of a kind agree on the type of its media. The core
uses only a medium's digest and size.
"""

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Protocol

from vlmkit.errors import MediaError, RequestError
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.pages import Pages

OWN_KINDS = frozenset({"text", "image"})
"""Kinds with part types of their own, which ``MediaPart`` does not accept."""


class Media(Protocol):
    """A medium, such as a sound, ready for a model's processor; immutable."""

    @property
    def digest(self) -> bytes:
        """Sha256 of its whole content: media have equal digests exactly if they are equal."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size in memory, in bytes."""
        ...


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A medium in a message, of a kind other than text or image.

    Attributes:
        kind: the kind, such as ``audio``; a model accepts it if its encoder lists the kind.
        media: the medium.
    """

    kind: str
    media: Media

    def __post_init__(self) -> None:
        if not self.kind.isidentifier() or self.kind in OWN_KINDS:
            raise RequestError(
                "a medium's kind must be a word, and neither text nor image",
                param="media",
                hint="texts and images have parts of their own: TextPart, ImagePart",
            )
        if not isinstance(getattr(self.media, "num_bytes", None), int):
            raise RequestError(
                "a medium must say its digest and its num_bytes", param="media", hint="see Media"
            )


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file in a message; a media loader turns it into parts in a worker thread.

    Attributes:
        data: the content of the file.
        pages: the selected pages; None for all. Refused for a file without pages.
        options: the size in which the model sees each of its images.
        max_tokens: maximum number of placeholder tokens of all its images together, divided
            equally. The file is refused if its images cannot be made so small.
        name: its name in errors, such as its path; never text from a client.
        is_image: whether it was sent as an image, so that errors call it an image.
    """

    data: bytes
    pages: Pages | None = None
    options: ImageOptions = PLAIN_IMAGE
    max_tokens: int | None = None
    name: str = field(default="", compare=False)
    is_image: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        limit = self.max_tokens
        if limit is not None and (type(limit) is not int or limit < 1):
            raise RequestError("a file's max_tokens must be a number from 1", param="max_tokens")


MediaSource = MediaPart | FilePart | bytes | str | PathLike[str]


def media_part(source: MediaSource, max_bytes: int) -> MediaPart | FilePart:
    """Return a part of a message for a part, the path of a file or its content.

    Raises:
        MediaError: the file cannot be read, or is larger than ``max_bytes``.
        RequestError: the source has another type.
    """
    if isinstance(source, MediaPart | FilePart):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        return FilePart(bytes(source))
    if not isinstance(source, str | PathLike):
        raise RequestError(
            f"a medium must be a MediaPart, a FilePart, a path or bytes, and was "
            f"{type(source).__name__}",
            param="media",
        )
    return FilePart(read_file(source, max_bytes), name=str(source))


def read_file(path: str | PathLike[str], max_bytes: int) -> bytes:
    """Return the content of a file that a Python program or a command names.

    Args:
        path: the path of the file, or its ``file:`` URL.
        max_bytes: maximum size.

    Raises:
        MediaError: the file cannot be read, or is larger than ``max_bytes``.
    """
    if isinstance(path, str) and is_file_url(path):
        path = path_of(path)
    if path == "":
        raise MediaError("file '' cannot be read: its path is empty", hint="name a file")
    try:
        with Path(path).open("rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # a zero byte in the path is a ValueError
        reason = getattr(error, "strerror", None) or "it is not a path"
        raise MediaError(
            f"file {str(path)!r} cannot be read: {reason}", hint=_hint(path)
        ) from error
    if len(data) > max_bytes:
        raise MediaError(f"file {str(path)!r} is over {max_bytes} bytes", code="media_too_large")
    return data


def is_file_url(source: str) -> bool:
    """Return whether a text is a ``file:`` URL."""
    return source[:5].lower() == "file:"


def path_of(url: str) -> str:
    """Return the path of a ``file:`` URL.

    Raises:
        MediaError: the path is on another machine, or not absolute.
    """
    from urllib.request import url2pathname

    rest = url[5:]
    if rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise MediaError(f"file {url!r} is on another machine", hint="copy it to this one")
        rest = slash + rest
    if not rest.startswith("/") or rest.startswith("//"):
        raise MediaError(
            f"{url!r} names no file by its whole path", hint="name the file by its path"
        )
    return url2pathname(rest)


def _hint(path: str | PathLike[str]) -> str:
    """Return a hint for a path that cannot be read."""
    try:
        is_folder = Path(path).is_dir()
    except (OSError, ValueError):
        is_folder = False
    if "://" in str(path):
        return "URLs of data:, file:, http: and https: are taken: save it, and name the file"
    return "it is a folder: name the files in it" if is_folder else "check the path"
