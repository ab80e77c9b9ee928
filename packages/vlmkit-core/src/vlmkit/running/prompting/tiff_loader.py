"""The built-in media loader for TIFF files: each page is an image, in the order of the file.

It adds no text between the pages, and never drops a page silently. Thumbnails and masks are no
pages.
"""

from vlmkit.errors import ImageError, MediaError
from vlmkit.image_files import tiff
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart
from vlmkit.types.pages import Pages


class TiffLoader:
    """Opens TIFF files."""

    def recognises(self, data: bytes) -> bool:
        """Return whether the first bytes are those of a TIFF file."""
        return tiff.is_tiff(data)

    def load(self, data: bytes, bounds: PipelineSettings) -> list[ImagePart]:
        """Return all pages.

        Raises:
            ImageError: the file is broken, or of an unsupported kind.
            MediaError: it has more pages than the bounds allow.
        """
        return self._shown(data, None, bounds)

    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> list[ImagePart]:
        """Return some pages.

        Raises:
            MediaError: as for :meth:`load`, or it has no such page.
        """
        return self._shown(data, pages, bounds)

    def _shown(self, data: bytes, pages: Pages | None, bounds: PipelineSettings) -> list[ImagePart]:
        if len(data) > bounds.max_media_bytes:
            raise MediaError(
                f"a document is over {bounds.max_media_bytes} bytes",
                param="messages",
                code="media_too_large",
            )
        try:
            found = tiff.pages(data)
            wanted = (pages or Pages(((1, len(found)),))).within(len(found), bounds.max_images)
            files = [(number, found[number - 1].file()) for number in wanted]
        except ValueError as error:
            raise ImageError(
                "image is a TIFF image whose pages cannot be read: broken or cut off",
                hint="save it again, as PNG or PDF",
            ) from error
        return [ImagePart(Image.open(file, bounds.images), page=number) for number, file in files]
