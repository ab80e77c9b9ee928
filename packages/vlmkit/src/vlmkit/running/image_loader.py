"""The built-in media loader: files of images. How they are opened is the image's business."""

from vlmkit.ask.image import Image
from vlmkit.ask.message import ImagePart
from vlmkit.ask.webp import is_webp
from vlmkit.settings.pipeline import PipelineSettings

SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM")


def is_image(data: bytes) -> bool:
    """Return whether a file begins as an image."""
    return is_webp(data) or data.startswith(SIGNATURES)


class ImageLoader:
    """Opens the formats of :mod:`vlmkit.ask.image`."""

    def recognises(self, data: bytes) -> bool:
        """Return whether a file begins as an image."""
        return is_image(data)

    def load(self, data: bytes, bounds: PipelineSettings) -> tuple[ImagePart]:
        """Return the image, or the first one of an animation.

        Raises:
            ImageError: it is not an image that may be opened.
        """
        return (ImagePart(Image.open(data, bounds.images)),)
