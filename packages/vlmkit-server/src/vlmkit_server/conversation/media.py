"""Opens the images and files of conversations: fetches, decodes and checks them, within limits.

A checked image still has no pixels: they are decoded when a prompt is built. A *light* prompt needs
only the sizes of its images. Its client may send ``size:WIDTHxHEIGHT`` in place of an image's URL.
:mod:`vlmkit.running.prompting.files` interprets the content of files when it reads the prompt.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from vlmkit.errors import ImageError, MediaError, RequestError
from vlmkit.inputs.images import WEB, part_of_content
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.kit.image_fetcher import ImageFetcher, not_fetched
from vlmkit.settings.images import ImageLimits
from vlmkit.types.base64_text import from_base64, is_data_url
from vlmkit.types.image import Image, data_url_bytes
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart
from vlmkit.types.pages import Pages
from vlmkit.types.stage import Stage
from vlmkit_server.admission.image_budget import ImageBudget
from vlmkit_server.exchange.offload import OffloadExecutor
from vlmkit_server.gather import in_order
from vlmkit_server.http.caller import Caller
from vlmkit_server.interfaces.conversation import FileSource, ImageSource
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.storage.file_storage import FileStorage, whole

SIZE_SCHEME = "size:"
NamedSource = tuple[str, str | bytes]
"""The path of an image in a body, and its URL or the content of its file."""
OpenSource = Callable[[str | bytes, ImageLimits, str], Awaitable[ImagePart | FilePart]]


class OpenedImage(NamedTuple):
    """A checked image, and the stage of fetching and checking its file."""

    image: Image
    fetch: Stage


class Media:
    """Opens images and files.

    Args:
        settings: the limits of one request.
        fetcher: fetches images and files by URL; None if fetching is off.
        storage: the uploaded files.
        offload: decodes and checks large files.
    """

    def __init__(
        self,
        settings: ServerSettings,
        fetcher: ImageFetcher | None,
        storage: FileStorage,
        offload: OffloadExecutor,
    ) -> None:
        self._settings = settings
        self._offload = offload
        self._fetcher = fetcher
        self._storage = storage

    def budget(self) -> ImageBudget:
        """Return the pixels that the images of one request may have."""
        return ImageBudget(self._settings.max_request_pixels)

    async def open_urls(
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

    async def open_images(
        self,
        images: Sequence[ImageSource],
        facts: RunnerFacts,
        caller: Caller,
        *,
        light: bool = False,
        budget: ImageBudget | None = None,
    ) -> list[ImagePart | FilePart]:
        """Return the message part of each image, which is a file part if a media loader decodes it.

        Media loaders decode files with pages, and formats that are not decoded here.

        Args:
            images: the images of a body, whose number is already checked.
            facts: describes the model and its limits.
            caller: the caller, whose uploaded files may be named.
            light: whether the prompt needs only the sizes of images.
            budget: the pixels that remain; None for those of a whole request.

        Raises:
            RequestError: an image cannot be opened; the error names the path of the first one.
        """
        sources = [(image.path, await self._source(image, caller.owner)) for image in images]
        open_source = self._open_header if light else self._open_part
        parts = await self._open_all(sources, facts, caller.account, open_source, budget)
        return [
            replace(part, options=image.options) for part, image in zip(parts, images, strict=True)
        ]

    async def open_files(
        self, files: Sequence[FileSource], facts: RunnerFacts, caller: Caller
    ) -> list[FilePart]:
        """Open files, a few at a time.

        Args:
            files: the files.
            facts: describes the model and its limits.
            caller: the caller, whose uploaded files may be named.

        Raises:
            RequestError: a file cannot be opened; the error names the path of the first one.
        """
        max_media = facts.bounds.max_media
        if len(files) > max_media:
            raise MediaError(
                f"{len(files)} media are over the limit of {max_media}",
                param="messages",
                code="too_many_media",
            )
        num_left = facts.bounds.max_media_bytes

        async def opened(file: FileSource) -> FilePart:
            nonlocal num_left
            try:
                content = await self._file_content(file, caller, num_left)
                num_left -= len(content)
                if num_left < 0:
                    raise _too_large(facts.bounds.max_media_bytes)
                pages = None if file.pages is None else Pages.of(file.pages)
            except RequestError as error:
                error.param = file.pages_path if error.param == "pages" else file.path
                raise
            return FilePart(content, pages, file.options, file.max_tokens)

        return await in_order(opened, files, max(1, facts.bounds.num_workers - 1))

    async def _source(self, image: ImageSource, owner: bytes) -> str | bytes:
        """Return the URL of an image, or the content of its file."""
        if (image.url is None) == (image.file_id is None):
            path = image.path.removesuffix(".url").removesuffix(".file_id")
            raise RequestError(
                f"{path} needs either url or file_id",
                param=path,
                hint="send a data: URL, or the file_id of an image that /v1/files keeps; a uuid "
                "names none",
            )
        if image.file_id is not None:
            return await self._stored(image.file_id, owner, image.path)
        return image.url or ""

    async def _stored(self, file_id: str, owner: bytes, path: str) -> bytes:
        """Return the content of an uploaded file."""
        try:
            return await whole(self._storage, file_id, owner, self._settings.max_body_bytes)
        except RequestError as error:
            error.param = path
            raise

    async def _file_content(self, file: FileSource, caller: Caller, max_bytes: int) -> bytes:
        if sum(map(bool, (file.data, file.file_id, file.url))) != 1:
            raise RequestError(f"{file.path} needs one of file_data, file_id and file_url")
        if file.file_id:
            return await self._stored(file.file_id, caller.owner, file.path)
        if file.url and not is_data_url(file.url):
            return await self._fetched_file(file.url)
        text = file.data or file.url or ""
        work = partial(_decoded, text, max_bytes)
        return await self._offload.decode(work, len(text), caller.account)

    async def _fetched_file(self, url: str) -> bytes:
        try:
            return await self._fetched(url)
        except ImageError as error:
            if error.code == "image_url_not_allowed":
                raise MediaError(
                    str(error).replace("image", "file"),
                    code="file_url_not_allowed",
                    hint="send the file itself",
                ) from None
            raise MediaError(
                "the file is too large to be fetched", code="media_too_large"
            ) from None

    async def _open_all(
        self,
        sources: Sequence[NamedSource],
        facts: RunnerFacts,
        account: str,
        open_source: OpenSource,
        budget: ImageBudget | None = None,
    ) -> list[ImagePart | FilePart]:
        budget = self.budget() if budget is None else budget

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


def _decoded(text: str, max_bytes: int) -> bytes:
    """Decode a ``data:`` URL, or base64 without its prefix."""
    start = text.find(",") + 1 if is_data_url(text) else 0
    if start and not text[:start].lower().endswith(";base64,"):
        raise MediaError("a file's data: URL must read data:application/pdf;base64,...")
    if (len(text) - start) * 3 // 4 > max_bytes + 2:
        raise _too_large(max_bytes)
    try:
        return from_base64(text, start)
    except ValueError:
        raise MediaError("the file's content is not valid base64") from None


def _too_large(max_bytes: int) -> MediaError:
    return MediaError(f"the files of a request are over {max_bytes} bytes", code="media_too_large")
