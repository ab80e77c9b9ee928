"""What a message may hold besides text and images: media of other kinds, and files not yet opened.

A medium is a value of whoever knows its kind: who makes it, who lays it out in a prompt and who
encodes it agree on what it is. The core asks only what tells it apart and how large it is.
"""

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Protocol

from vlmkit.errors import MediaError, RequestError
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.pages import Pages

OWN_KINDS = frozenset({"text", "image"})
"""Kinds that have parts of their own."""


class Media(Protocol):
    """A sound, say, ready for a model's processor; never changes."""

    @property
    def digest(self) -> bytes:
        """Sha256 of all that it holds: equal media have equal digests, and no others."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        ...


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A medium of another kind than text or image at this place of the message.

    Attributes:
        kind: what it is, such as ``audio``; a model takes it if its encoder names the kind.
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
    """A file at this place of the message; a media loader makes parts of it in a worker.

    Attributes:
        data: what the file holds.
        pages: those that are shown; all of them when None. Of a file without pages it is refused.
        options: how large each of its pictures is shown.
        max_tokens: placeholder tokens that its pictures may take together, each as many as the
            others; it is refused where they cannot be made so small.
        name: what errors call it, such as its path; never a text of a client.
        is_image: whether it was sent in the place of an image, which errors then are about.
    """

    data: bytes
    pages: Pages | None = None
    options: ImageOptions = PLAIN_IMAGE
    max_tokens: int | None = None
    name: str = field(default="", compare=False)
    is_image: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        most = self.max_tokens
        if most is not None and (type(most) is not int or most < 1):
            raise RequestError("a file's max_tokens must be a number from 1", param="max_tokens")


MediaSource = MediaPart | FilePart | bytes | str | PathLike[str]


def media_part(source: MediaSource, max_bytes: int) -> MediaPart | FilePart:
    """Return the part of what somebody passed to Python: a part, a file's path or its content.

    Raises:
        MediaError: the file cannot be read, or has more than ``max_bytes``.
        RequestError: it is none of these.
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
    """Return what a file holds that somebody named to Python or on the command line.

    Args:
        path: of the file, or its ``file:`` URL.
        max_bytes: most that it may have.

    Raises:
        MediaError: it cannot be read, or has more than ``max_bytes``.
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
    """Tell whether somebody names a file of this machine by its URL."""
    return source[:5].lower() == "file:"


def path_of(url: str) -> str:
    """Return the path that a ``file:`` URL names.

    Raises:
        MediaError: it is a path on another machine, or not a whole one.
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
    """Return what to do about a path that cannot be read."""
    try:
        is_folder = Path(path).is_dir()
    except (OSError, ValueError):
        is_folder = False
    if "://" in str(path):
        return "URLs of data:, file:, http: and https: are taken: save it, and name the file"
    return "it is a folder: name the files in it" if is_folder else "check the path"
