"""Opening the pictures that an agent names: files, ``data:`` URLs, and addresses.

An agent repeats what it has read, so a name may be anybody's: files are read within the folders
that the operator allows and nowhere else, addresses as vlmkit's server fetches them or not at all.
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


class Pictures:
    """Opens pictures by their names.

    Args:
        folders: where files may be read, in folders below them, too.
        fetcher: fetches http(s) URLs; None where none may be fetched.
        max_pixels: of all pictures of one question.
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
        """What names of pictures may be, for who asks."""
        ways = ["a data: URL"]
        if self._folders:
            ways.insert(0, f"the path of a file within {', '.join(map(str, self._folders))}")
        if self._fetcher:
            ways.append("an https URL")
        return " or ".join(ways)

    async def opened(self, names: Sequence[str], bounds: PipelineSettings) -> list[Image]:
        """Return the pictures, checked.

        Args:
            names: paths and URLs.
            bounds: what the model takes.

        Raises:
            ImageError: one may not be read, or is no picture; says which.
        """
        if len(names) > bounds.max_images:
            raise ImageError(f"{len(names)} images are over the limit of {bounds.max_images}")
        images: list[Image] = []
        num_pixels_left = self._max_pixels
        for index, name in enumerate(names):
            try:
                images.append(await self._opened(name, bounds.images))
            except ImageError as error:
                raise ImageError(f"images[{index}]: {error}", hint=error.hint) from error
            num_pixels_left -= images[-1].source_size[0] * images[-1].source_size[1]
            if num_pixels_left < 0:
                raise ImageError("the images have too many pixels together")
        return images

    async def _opened(self, name: str, limits: ImageLimits) -> Image:
        if name.startswith("data:"):
            return await asyncio.to_thread(Image.open, name, limits)
        if not name.startswith(("http://", "https://")):
            return await asyncio.to_thread(self._of_file, name, limits)
        if self._fetcher is None:
            raise ImageError("URLs are not fetched here", hint=f"an image is {self.meaning}")
        return await asyncio.to_thread(Image.open, await self._fetcher.fetch(name), limits)

    def _of_file(self, name: str, limits: ImageLimits) -> Image:
        """Open a file; what lies outside of the folders looks the same as what is not there."""
        try:
            path = self._found(name)
            with path.open("rb") as file:
                content = file.read(limits.max_bytes + 1)
        except (OSError, RuntimeError, ValueError) as error:  # loops of links, zero bytes
            raise ImageError(
                "it is no file that may be read", hint=f"an image is {self.meaning}"
            ) from error
        return Image.open(content, limits)

    def _found(self, name: str) -> Path:
        """Return where a file lies: links followed, and within one of the folders.

        Raises:
            OSError: it is in none of them.
        """
        if len(name) <= MAX_PATH_CHARS:
            for folder in self._folders:
                path = (folder / name).resolve()
                if path.is_relative_to(folder) and path.is_file():  # no pipe: reading one waits
                    return path
        raise FileNotFoundError
