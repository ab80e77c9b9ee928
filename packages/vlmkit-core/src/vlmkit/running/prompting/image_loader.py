"""The built-in media loader for files of one image. :class:`Image` opens them."""

from vlmkit.image_files.file_type import is_image
from vlmkit.image_files.tiff import is_tiff
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart


class ImageLoader:
    """Opens the formats of :mod:`vlmkit.types.image` except TIFF, whose files have pages."""

    def recognises(self, data: bytes) -> bool:
        """Return whether the first bytes are those of an image."""
        return is_image(data) and not is_tiff(data)

    def load(self, data: bytes, bounds: PipelineSettings) -> tuple[ImagePart]:
        """Return the image, or the first one of an animation.

        Raises:
            ImageError: the image is broken, of an unsupported kind, or over a limit.
        """
        return (ImagePart(Image.open(data, bounds.images)),)
