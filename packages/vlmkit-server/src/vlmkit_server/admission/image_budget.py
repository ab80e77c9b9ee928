"""Counts the pixels of a body's images, also of those that media loaders make of files.

Images are counted when their files are checked, before they are decoded. Pages of documents are
counted when a prompt with them is made, since only the process that draws them knows their sizes.
"""

import threading

from vlmkit.errors import ImageError


class ImageBudget:
    """The pixels that remain for the images of one body; may be used in any thread.

    Args:
        num_pixels: of all images together.
    """

    def __init__(self, num_pixels: int) -> None:
        self._num_left = num_pixels
        self._lock = threading.Lock()

    def count(self, num_pixels: int) -> None:
        """Count an image, or several.

        Raises:
            ImageError: the images together have too many pixels.
        """
        with self._lock:
            self._num_left -= num_pixels
        self.check()

    def check(self) -> None:
        """Refuse further work once the images counted so far have too many pixels.

        Raises:
            ImageError: they have.
        """
        if self._num_left < 0:
            raise ImageError(
                "the images have too many pixels together", param="messages", code="image_too_large"
            )
