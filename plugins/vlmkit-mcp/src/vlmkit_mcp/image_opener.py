"""Opens the images that an agent names: files, ``data:`` URLs, and http(s) URLs.

An agent repeats what it has read, so names are untrusted. Files are read only within the folders
that the operator allows. URLs are fetched with the rules of vlmkit's server, or not at all.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from vlmkit.errors import ImageError
from vlmkit.kit.image_fetcher import ImageFetcher
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit_server.settings.server import ServerSettings

MAX_PATH_CHARS = 4096


class ImageOpener:
    """Opens images by their names.

    Args:
        folders: the folders in which files may be read, including folders below.
        fetcher: fetches http(s) URLs; None if URLs are not allowed.
        max_pixels: the most pixels of all images of one question.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        fetcher: ImageFetcher | None,
        max_pixels: int = ServerSettings().max_request_pixels,
    ) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self._fetcher = fetcher
        self._max_pixels = max_pixels

    @property
    def meaning(self) -> str:
        """The names that are accepted, for the tool's description."""
        ways = ["a data: URL"]
        if self._folders:
            ways.insert(0, f"the path of a file within {', '.join(map(str, self._folders))}")
        if self._fetcher:
            ways.append("an https URL")
        return " or ".join(ways)

    async def open_all(self, names: Sequence[str], bounds: PipelineSettings) -> list[Image]:
        """Open and check images.

        Args:
            names: paths and URLs.
            bounds: the model's limits.

        Raises:
            ImageError: an image cannot be read, or is no image; says which.
        """
        if len(names) > bounds.max_images:
            raise ImageError(f"{len(names)} images are over the limit of {bounds.max_images}")
        images: list[Image] = []
        num_pixels_left = self._max_pixels
        for index, name in enumerate(names):
            try:
                images.append(await self._open_one(name, bounds.images))
            except ImageError as error:
                raise ImageError(f"images[{index}]: {error}", hint=error.hint) from error
            num_pixels_left -= images[-1].source_size[0] * images[-1].source_size[1]
            if num_pixels_left < 0:
                raise ImageError("the images have too many pixels together")
        return images

    async def _open_one(self, name: str, limits: ImageLimits) -> Image:
        if name.startswith("data:"):
            return await asyncio.to_thread(Image.open, name, limits)
        if not name.startswith(("http://", "https://")):
            return await asyncio.to_thread(self._open_file, name, limits)
        if self._fetcher is None:
            raise ImageError("URLs are not fetched here", hint=f"an image is {self.meaning}")
        return await asyncio.to_thread(Image.open, await self._fetcher.fetch(name), limits)

    def _open_file(self, name: str, limits: ImageLimits) -> Image:
        """Open a file; one outside of the folders looks like a missing one."""
        try:
            path = self._real_path(name)
            with path.open("rb") as file:
                content = file.read(limits.max_bytes + 1)
        except (OSError, RuntimeError, ValueError) as error:  # link loops, null bytes
            raise ImageError(
                "it is not a file that may be read", hint=f"an image is {self.meaning}"
            ) from error
        return Image.open(content, limits)

    def _real_path(self, name: str) -> Path:
        """Return the real path of a file within one of the folders.

        Raises:
            OSError: it is in none of the folders.
        """
        if len(name) <= MAX_PATH_CHARS:
            for folder in self._folders:
                path = (folder / name).resolve()
                if path.is_relative_to(folder) and path.is_file():  # reading a pipe would block
                    return path
        raise FileNotFoundError
