"""Opens TIFF files: each page of a scan is an image, in the order of the file."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

import vlmkit
from vlmkit.errors import MediaError, VlmkitError
from vlmkit.interfaces.media_loader import MediaLoader
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart
from vlmkit.types.pages import Pages

if TYPE_CHECKING:
    import PIL.Image

VLMKIT_API = (1, 0)
SIGNATURES = (b"II*\0", b"MM\0*")


class TiffLoader:
    """Opens TIFF files with Pillow, page by page."""

    def recognises(self, data: bytes) -> bool:
        """Tell whether a file begins as TIFF."""
        return data.startswith(SIGNATURES)

    def load(self, data: bytes, bounds: PipelineSettings) -> list[ImagePart]:
        """Return every page.

        Raises:
            MediaError: the file is broken, or holds more than the bounds allow.
        """
        return self._shown(data, None, bounds)

    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> list[ImagePart]:
        """Return some pages.

        Raises:
            MediaError: as for :meth:`load`, or there is no such page.
        """
        return self._shown(data, pages, bounds)

    def _shown(self, data: bytes, pages: Pages | None, bounds: PipelineSettings) -> list[ImagePart]:
        if len(data) > bounds.max_media_bytes:
            raise _too_large(bounds)
        if pages is not None and len(pages) > bounds.max_images:
            raise _too_many(bounds)
        import PIL.Image

        try:
            with PIL.Image.open(io.BytesIO(data), formats=["TIFF"]) as file:
                return list(_pages(file, pages, bounds))
        except VlmkitError:
            raise
        except Exception as error:  # Pillow raises much else on files that were made to do harm
            raise MediaError("a TIFF file is broken", param="messages") from error


def _pages(
    file: "PIL.Image.Image", pages: Pages | None, bounds: PipelineSettings
) -> Iterator[ImagePart]:
    """Yield pages; each one's size is looked at before its pixels are decoded."""
    num_bytes = 0
    for number in _numbers(file) if pages is None else pages:
        if number > bounds.max_images and pages is None:
            raise _too_many(bounds)
        _turn_to(file, number)
        num_bytes += 3 * file.width * file.height
        if num_bytes > bounds.max_media_bytes:
            raise _too_large(bounds)
        yield ImagePart(Image.open(file, bounds.images), page=number)


def _numbers(file: "PIL.Image.Image") -> Iterator[int]:
    """Yield the numbers of pages, from 1, as long as there is another one."""
    number = 1
    while number == 1 or _has(file, number):
        yield number
        number += 1


def _has(file: "PIL.Image.Image", number: int) -> bool:
    try:
        file.seek(number - 1)
    except EOFError:
        return False
    return True


def _turn_to(file: "PIL.Image.Image", number: int) -> None:
    if not _has(file, number):
        raise MediaError(f"a TIFF file has no page {number}", param="pages")


def _too_many(bounds: PipelineSettings) -> MediaError:
    return MediaError(
        f"a TIFF file has more than the {bounds.max_images} pages that may be shown",
        param="messages",
        code="too_many_images",
        hint="choose pages",
    )


def _too_large(bounds: PipelineSettings) -> MediaError:
    return MediaError(
        f"a TIFF file is over {bounds.max_media_bytes} bytes, or its pages are",
        param="messages",
        code="media_too_large",
        hint="choose fewer pages",
    )


def _build(_: BuildContext) -> MediaLoader:
    return TiffLoader()


@vlmkit.hookimpl
def vlmkit_register_media_loaders(registry: Registry[MediaLoader]) -> None:
    """Offer ``media_loaders.use = ["yourname"]``; by default, all that can serve are used."""
    registry.add("yourname", _build, description="pages of TIFF files")
