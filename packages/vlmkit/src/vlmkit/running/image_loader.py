"""The built-in media loader: files of images. How they are opened is the image's business."""

from vlmkit.ask.image import Image
from vlmkit.ask.message import ImagePart
from vlmkit.settings.pipeline import PipelineSettings

SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM")


class ImageLoader:
    """Opens the formats of :mod:`vlmkit.ask.image`."""

    def recognises(self, data: bytes) -> bool:
        """Tell whether a file begins as an image."""
        is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
        return is_webp or data.startswith(SIGNATURES)

    def load(self, data: bytes, bounds: PipelineSettings) -> tuple[ImagePart]:
        """Return the image, or the first one of an animation.

        Raises:
            ImageError: it is not an image that may be opened.
        """
        return (ImagePart(Image.open(data, bounds.images)),)
