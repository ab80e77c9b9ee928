"""Opens the images that bodies name: fetches and checks their files, within shared limits.

A checked file still has no pixels: they are decoded when a prompt is built. A *light* prompt needs
only the sizes of its images. Its client may send ``size:WIDTHxHEIGHT`` in place of an image's URL.

A *path* here is the place of an image in a body, such as ``messages[0].content[1].image_url.url``.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from vlmkit.errors import ImageError, RequestError
from vlmkit.inputs.images import WEB, part_of_content
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.kit.image_fetcher import ImageFetcher, not_fetched
from vlmkit.settings.images import ImageLimits
from vlmkit.types.base64_text import is_data_url
from vlmkit.types.image import Image, data_url_bytes
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart
from vlmkit.types.stage import Stage
from vlmkit_server.exchange.offload import OffloadExecutor
from vlmkit_server.gather import in_order
from vlmkit_server.settings.server import ServerSettings

SIZE_SCHEME = "size:"
NamedSource = tuple[str, str | bytes]
"""The path of an image in a body, and its URL or the content of its file."""
OpenSource = Callable[[str | bytes, ImageLimits, str], Awaitable[ImagePart | FilePart]]


class OpenedImage(NamedTuple):
    """A checked image, and the stage of fetching and checking its file."""

    image: Image
    fetch: Stage


@dataclass(slots=True)
class ImageBudget:
    """The pixels that remain for the images of one request."""

    num_pixels_left: int

    def count(self, num_pixels: int) -> None:
        """Count an image.

        Raises:
            ImageError: the images together have too many pixels.
        """
        self.num_pixels_left -= num_pixels
        self.check()

    def check(self) -> None:
        """Refuse further work once the images counted so far have too many pixels.

        Raises:
            ImageError: they have.
        """
        if self.num_pixels_left < 0:
            raise ImageError(
                "the images have too many pixels together", param="messages", code="image_too_large"
            )


class Images:
    """Opens the images that bodies name.

    Args:
        settings: the limits of one request.
        fetcher: fetches images by URL; None if fetching is off.
        offload: decodes and checks large files.
    """

    def __init__(
        self, settings: ServerSettings, fetcher: ImageFetcher | None, offload: OffloadExecutor
    ) -> None:
        self._settings = settings
        self._offload = offload
        self._fetcher = fetcher

    async def open_images(
        self, sources: Sequence[NamedSource], facts: RunnerFacts, account: str
    ) -> list[OpenedImage]:
        """Fetch and check images concurrently, as many at once as the runner decodes at once.

        Args:
            sources: the images of a body, whose number is already checked.
            facts: describes the model and its limits.
            account: the account that the offload executor counts the work to.

        Raises:
            RequestError: an image cannot be opened; the error names the path of the first one.
        """
        parts = await self._open_all(sources, facts, account, self._open_image)
        return [
            OpenedImage(part.image, part.fetch) for part in parts if isinstance(part, ImagePart)
        ]

    async def open_parts(
        self,
        sources: Sequence[NamedSource],
        facts: RunnerFacts,
        account: str,
        *,
        light: bool = False,
    ) -> list[ImagePart | FilePart]:
        """Return the message part of each image, which is a file part if a media loader decodes it.

        Media loaders decode files with pages, and formats that are not decoded here.

        Args:
            sources: the images of a body, whose number is already checked.
            facts: describes the model and its limits.
            account: the account that the offload executor counts the work to.
            light: whether the prompt needs only the sizes of images.

        Raises:
            RequestError: an image cannot be opened; the error names the path of the first one.
        """
        open_source = self._open_header if light else self._open_part
        return await self._open_all(sources, facts, account, open_source)

    async def _open_all(
        self,
        sources: Sequence[NamedSource],
        facts: RunnerFacts,
        account: str,
        open_source: OpenSource,
    ) -> list[ImagePart | FilePart]:
        budget = ImageBudget(self._settings.max_request_pixels)

        async def open_named(named: NamedSource) -> ImagePart | FilePart:
            path, source = named
            began_s = time.time()
            budget.check()  # others may have been too large; then this one costs nothing
            try:
                part = await open_source(source, facts.bounds.images, account)
            except ImageError as error:
                error.param = path
                raise
            if isinstance(part, FilePart):
                return part
            budget.count(part.image.source_size[0] * part.image.source_size[1])
            return replace(part, fetch=Stage.since(began_s))

        num_at_once = max(1, facts.bounds.num_workers - 1)
        return await in_order(open_named, sources, num_at_once)

    async def _open_image(
        self, source: str | bytes, limits: ImageLimits, account: str
    ) -> ImagePart:
        """Open an image; a string must be a URL, so paths of local files are refused."""
        source = await self._content(source)
        work = partial(Image.open, source, limits)
        return ImagePart(await self._offload.decode(work, len(source), account))

    async def _open_part(
        self, source: str | bytes, limits: ImageLimits, account: str
    ) -> ImagePart | FilePart:
        source = await self._content(source)
        work = partial(_part_of_source, source, limits)
        return await self._offload.decode(work, len(source), account)

    async def _open_header(
        self, source: str | bytes, limits: ImageLimits, account: str
    ) -> ImagePart:
        """Read an image's size; fetches only the beginning of a remote file."""
        if isinstance(source, str) and source.startswith(SIZE_SCHEME):
            return ImagePart(Image.of_size(_size(source), limits))
        source = await self._content(source, partial(_is_enough, limits=limits))
        work = partial(Image.of_header, source, limits)
        return ImagePart(await self._offload.decode(work, len(source), account))

    async def _content(
        self, source: str | bytes, is_enough: Callable[[bytes], bool] | None = None
    ) -> str | bytes:
        """Return a source that needs no fetching unchanged; fetch the file of any other URL.

        Args:
            source: the content of a file, or a URL.
            is_enough: ends fetching once the beginning of the file suffices.

        Raises:
            ImageError: the URL is not allowed, or the file cannot be fetched.
        """
        if isinstance(source, bytes) or is_data_url(source):
            return source
        if not source.lower().startswith(WEB):
            raise ImageError(
                "an image must be a data: URL with base64, or an http(s) URL",
                code="image_url_not_allowed",
                hint="write base64 as data:image/png;base64,...",
            )
        return await self._fetched(source, is_enough)

    async def _fetched(self, url: str, is_enough: Callable[[bytes], bool] | None = None) -> bytes:
        if self._fetcher is None:
            raise not_fetched()
        return await self._fetcher.fetch(url, is_enough)


def _part_of_source(source: str | bytes, limits: ImageLimits) -> ImagePart | FilePart:
    content = data_url_bytes(source, limits) if isinstance(source, str) else source
    return part_of_content(content, limits)


def check_num_images(num: int, facts: RunnerFacts, param: str) -> None:
    """Refuse more images than a request may have.

    Raises:
        RequestError: the model supports no images, or fewer.
    """
    if num and not facts.takes_images:
        raise RequestError("this model takes no images", param=param)
    if num > facts.bounds.max_images:
        raise RequestError(
            f"{num} images are over the limit of {facts.bounds.max_images}",
            param=param,
            code="too_many_images",
        )


def _is_enough(content: bytes, limits: ImageLimits) -> bool:
    """Return whether the beginning of a file suffices: its size is known, or it is refused."""
    try:
        Image.of_header(content, limits)
    except ImageError as error:
        return error.code != "invalid_image"  # which more of the file may correct
    return True


def _size(url: str) -> tuple[int, int]:
    """Return the width and height of a ``size:`` URL, which replaces an image."""
    width, _, height = url.removeprefix(SIZE_SCHEME).partition("x")
    if not all(side.isascii() and side.isdecimal() and len(side) < 10 for side in (width, height)):
        raise ImageError(f"a size in place of a picture must read {SIZE_SCHEME}WIDTHxHEIGHT")
    return int(width), int(height)
