"""The built-in media loader: files of one image. How they are opened is the image's business."""

from vlmkit.image_files.file_type import is_image
from vlmkit.image_files.tiff import is_tiff
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart


class ImageLoader:
    """Opens the formats of :mod:`vlmkit.types.image` but TIFF, whose files have pages."""

    def recognises(self, data: bytes) -> bool:
        """Return whether a file begins as an image."""
        return is_image(data) and not is_tiff(data)

    def load(self, data: bytes, bounds: PipelineSettings) -> tuple[ImagePart]:
        """Return the image, or the first one of an animation.

        Raises:
            ImageError: it is not an image that may be opened.
        """
        return (ImagePart(Image.open(data, bounds.images)),)
