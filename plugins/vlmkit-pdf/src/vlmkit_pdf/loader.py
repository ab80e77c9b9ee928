"""The media loader for PDF files: each page is an image, in the order of the document.

There is no text between pages. A document with too many pages is refused, never shortened, unless
the request selects pages.
"""

from vlmkit.errors import MediaError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart
from vlmkit.types.pages import Pages
from vlmkit_pdf.process import render_pages
from vlmkit_pdf.settings import PdfSettings

START_BYTES = 1024  # readers search a file's header within these bytes
_BLANK = b"\xef\xbb\xbf \t\r\n\0"


class PdfLoader:
    """Opens PDF files.

    Args:
        settings: the settings for rendering, and the limits of one file.
        cancellation: the cancellation of the request; None if nothing cancels it.
    """

    def __init__(self, settings: PdfSettings, cancellation: Cancellation | None = None) -> None:
        self._settings = settings
        self._cancellation = cancellation or Cancellation()

    def for_request(self, cancellation: Cancellation) -> "PdfLoader":
        """Return a loader whose processes are killed when a request is cancelled."""
        return PdfLoader(self._settings, cancellation)

    def recognises(self, data: bytes) -> bool:
        """Tell whether a file starts like a PDF file."""
        return data[:START_BYTES].lstrip(_BLANK).startswith(b"%PDF-")

    def load(self, data: bytes, bounds: PipelineSettings) -> list[ImagePart]:
        """Return all pages.

        Raises:
            RequestCancelled: the request was cancelled.
            MediaError: the file is locked or broken, or has more pages than the bounds allow.
        """
        return self._rendered(data, None, bounds)

    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> list[ImagePart]:
        """Return selected pages.

        Raises:
            MediaError: as for :meth:`load`, or the file has no such page.
        """
        return self._rendered(data, pages, bounds)

    def _rendered(
        self, data: bytes, pages: Pages | None, bounds: PipelineSettings
    ) -> list[ImagePart]:
        if len(data) > bounds.max_media_bytes:
            raise MediaError(
                f"a document is over {bounds.max_media_bytes} bytes",
                param="messages",
                code="media_too_large",
            )
        return [
            ImagePart(Image.open(page.content, bounds.images), page=page.number)
            for page in render_pages(data, pages, self._settings, bounds, self._cancellation)
        ]
