"""Opens the files that content parts name: decodes, fetches or looks them up, within shared limits.

:mod:`vlmkit.running.prompting.files` interprets their content when it reads the prompt.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from vlmkit.errors import ImageError, MediaError, RequestError
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.kit.image_fetcher import ImageFetcher, not_fetched
from vlmkit.types.base64_text import from_base64, is_data_url
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.media import FilePart
from vlmkit.types.pages import Pages
from vlmkit_server.apis.files.storage import FileStorage, whole
from vlmkit_server.apis.openai_chat import wire
from vlmkit_server.apis.openai_chat.image_options import options_of
from vlmkit_server.exchange.offload import OffloadExecutor
from vlmkit_server.gather import in_order
from vlmkit_server.http.caller import Caller


class NamedFile(NamedTuple):
    """A file part of a body, and the path that its errors name."""

    path: str
    file: wire.NamedFile


class Files:
    """Opens the files that bodies name.

    Args:
        storage: the uploaded files.
        fetcher: fetches files by URL; None if fetching is off.
        max_bytes: the largest size of an uploaded file that is read.
        offload: decodes large files.
    """

    def __init__(
        self,
        storage: FileStorage,
        fetcher: ImageFetcher | None,
        max_bytes: int,
        offload: OffloadExecutor,
    ) -> None:
        self._storage = storage
        self._max_bytes = max_bytes
        self._fetcher = fetcher
        self._offload = offload

    async def content(self, file_id: str, owner: bytes, path: str) -> bytes:
        """Return the content of an uploaded file.

        Raises:
            RequestError: the owner has no such file, or it is too large; the error names the path.
        """
        try:
            return await whole(self._storage, file_id, owner, self._max_bytes)
        except RequestError as error:
            error.param = path
            raise

    async def open_files(
        self,
        files: Sequence[NamedFile],
        facts: RunnerFacts,
        caller: Caller,
        default_options: ImageOptions,
    ) -> list[FilePart]:
        """Open files, a few at a time.

        Args:
            files: the files.
            facts: describes the model and its limits.
            caller: the caller, whose uploaded files may be named.
            default_options: the options of pictures where a file sets none.

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

        async def file(named: NamedFile) -> FilePart:
            nonlocal num_left
            path, source = named
            try:
                content = await self._content(named, caller, num_left)
                num_left -= len(content)
                if num_left < 0:
                    raise _too_large(facts.bounds.max_media_bytes)
                pages = None if source.pages is None else Pages.of(source.pages)
            except RequestError as error:
                error.param = f"{path}.pages" if error.param == "pages" else path
                raise
            return FilePart(
                content, pages, options_of(source, default_options), source.max_file_tokens
            )

        return await in_order(file, files, max(1, facts.bounds.num_workers - 1))

    async def _content(self, named: NamedFile, caller: Caller, max_bytes: int) -> bytes:
        path, source = named
        given = [name for name in ("file_data", "file_id", "file_url") if getattr(source, name)]
        if len(given) != 1:
            raise RequestError(f"{path} needs one of file_data, file_id and file_url")
        if source.file_id:
            return await self.content(source.file_id, caller.owner, path)
        if source.file_url and not is_data_url(source.file_url):
            return await self._fetched(source.file_url)
        text = source.file_data or source.file_url or ""
        work = partial(_decoded, text, max_bytes)
        return await self._offload.decode(work, len(text), caller.account)

    async def _fetched(self, url: str) -> bytes:
        try:
            if self._fetcher is None:
                raise not_fetched()
            return await self._fetcher.fetch(url)
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
