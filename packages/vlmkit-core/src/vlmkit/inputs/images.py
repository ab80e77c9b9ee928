"""Turns the images of Python programs and commands into parts of a message.

A source is a path, a URL, bytes, or an object of an image library. A file of one image is checked
at once. Any other file becomes a :class:`FilePart`, which a media loader of the model opens or
refuses later, as over HTTP.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from vlmkit.errors import ImageError, MediaError, RequestError
from vlmkit.image_files.file_type import is_image
from vlmkit.image_files.tiff import has_pages
from vlmkit.kit.install_command import install_command
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.base64_text import is_data_url
from vlmkit.types.image import Image, ImageSource, data_url_bytes
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.media import FilePart, is_file_url, path_of, read_file
from vlmkit.types.message import ImagePart, Message, parts_of

if TYPE_CHECKING:
    from vlmkit.kit.image_fetcher import ImageFetcher
    from vlmkit.settings.fetch import FetchSettings

Shown = ImageSource | ImagePart | FilePart
WEB = ("http://", "https://")
MAX_NAME_CHARS = 200


def shown_part(
    source: Shown,
    bounds: PipelineSettings,
    fetcher: "ImageFetcher | None" = None,
    options: ImageOptions = PLAIN_IMAGE,
) -> ImagePart | FilePart:
    """Return the part of a message for the source of an image.

    Args:
        source: a path, a URL (data, file, http or https), the bytes of a file, or an object. An
            object is a PIL image, a uint8 array ``[height, width, 3]``, an ``Image``, or a part,
            which is returned unchanged.
        bounds: the limits of a request.
        fetcher: fetches ``http(s)`` URLs; None if that is not allowed.
        options: the size in which the model sees the image.

    Raises:
        ImageError: the source has another type, or its image is refused; names the file.
    """
    if isinstance(source, ImagePart | FilePart):
        return source
    name, limits = "", bounds.images
    try:
        content: Any = source
        if isinstance(source, str) and is_data_url(source):
            content = data_url_bytes(source, limits)
        elif isinstance(source, str) and source.lower().startswith(WEB):
            name = source[:MAX_NAME_CHARS]
            content = _fetched(source, fetcher)
        elif isinstance(source, str | PathLike):
            is_url = isinstance(source, str) and is_file_url(source)
            path = path_of(str(source)) if is_url else source
            name = str(path)
            content = read_file(path, max(limits.max_bytes, bounds.max_media_bytes))
        elif isinstance(source, bytearray | memoryview):
            content = bytes(source)
        return replace(part_of_content(content, limits, options), name=name)
    except MediaError as error:
        raise named(error, name) from error


def part_of_content(
    content: bytes | Any, limits: ImageLimits, options: ImageOptions = PLAIN_IMAGE
) -> ImagePart | FilePart:
    """Return the part for a file's content: a checked image, or a file for a media loader.

    Raises:
        ImageError: the content is an image that is refused.
    """
    if isinstance(content, bytes) and (not is_image(content) or has_pages(content)):
        return FilePart(content, options=options, is_image=True)
    return ImagePart(Image.open(content, limits), options)


def listed(sources: Any) -> Sequence[Any]:
    """Return a sequence of sources unchanged, a single source or None as a sequence."""
    if sources is None:
        return ()
    is_one = isinstance(sources, str | bytes | bytearray | memoryview)
    return (sources,) if is_one or not isinstance(sources, Sequence) else sources


@contextmanager
def for_owner(messages: Sequence[Message]) -> Iterator[None]:
    """Add details to errors that only the owner of this machine may see.

    These are the name of an image or a file of the conversation, and the command that installs a
    missing distribution.
    """
    try:
        yield
    except MediaError as error:
        shown = [part for part in parts_of(messages) if isinstance(part, ImagePart | FilePart)]
        if error.index is None or error.index >= len(shown) or not shown[error.index].name:
            raise
        raise named(error, shown[error.index].name) from error
    except RequestError as error:
        if not error.distribution:
            raise
        hint = _with_command(error.hint, error.distribution)
        detailed = type(error)(str(error), hint=hint)
        detailed.param, detailed.code = error.param, error.code
        detailed.distribution = error.distribution
        raise detailed from error


def named(error: MediaError, name: str) -> MediaError:
    """Return an error that names its file; unchanged if it names it already.

    For the owner of this machine: its hint has the command that installs a missing distribution.
    """
    if not name or repr(name) in str(error):
        return error
    hint = _with_command(error.hint, error.distribution)
    detailed = type(error)(f"{name!r}: {error}", param=error.param, code=error.code, hint=hint)
    detailed.index, detailed.distribution = error.index, error.distribution
    return detailed


def _with_command(hint: str, distribution: str) -> str:
    """Return a hint with the install command of a distribution instead of its name."""
    if not distribution:
        return hint
    command = f"{install_command(distribution)};"
    for name in (f"install {distribution} where vlmkit runs,", f"install {distribution},"):
        hint = hint.replace(name, command, 1)
    return hint


def fetcher_of(settings: "FetchSettings") -> "ImageFetcher | None":
    """Return a fetcher for the given settings; None if they disable fetching."""
    if not settings.enabled:
        return None
    from vlmkit.kit.image_fetcher import ImageFetcher  # its libraries take long to import

    return ImageFetcher(settings)


def _fetched(url: str, fetcher: "ImageFetcher | None") -> bytes:
    if fetcher is None:
        raise ImageError(
            "images are not fetched by URL here",
            code="image_url_not_allowed",
            hint='load(..., fetch={"enabled": True}) allows it; or pass its bytes',
        )
    with ThreadPoolExecutor(1) as thread:  # an event loop may be running in this one
        return thread.submit(asyncio.run, fetcher.fetch(url)).result()
