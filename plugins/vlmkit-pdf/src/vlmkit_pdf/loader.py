"""The media loader for PDF files: each page is an image, in the order of the document.

Nothing is said between the pages, and of a document too long for the bounds none is left out: it is
refused, unless the request chooses pages.
"""

from vlmkit.errors import MediaError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart
from vlmkit.types.pages import Pages
from vlmkit_pdf.process import drawn_pages
from vlmkit_pdf.settings import PdfSettings

BEGINNING_BYTES = 1024  # within which readers look for a file's beginning
_BLANK = b"\xef\xbb\xbf \t\r\n\0"


class PdfLoader:
    """Opens PDF files.

    Args:
        settings: how pages are drawn, and what one file may take.
        cancellation: of the request whose files are opened; None where nothing cancels it.
    """

    def __init__(self, settings: PdfSettings, cancellation: Cancellation | None = None) -> None:
        self._settings = settings
        self._cancellation = cancellation or Cancellation()

    def for_request(self, cancellation: Cancellation) -> "PdfLoader":
        """Return a loader whose processes are killed when a request is cancelled."""
        return PdfLoader(self._settings, cancellation)

    def recognises(self, data: bytes) -> bool:
        """Tell whether a file begins as a PDF file."""
        return data[:BEGINNING_BYTES].lstrip(_BLANK).startswith(b"%PDF-")

    def load(self, data: bytes, bounds: PipelineSettings) -> list[ImagePart]:
        """Return every page.

        Raises:
            RequestCancelled: the request was cancelled.
            MediaError: the file is locked or broken, or has more pages than the bounds allow.
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
        return [
            ImagePart(Image.open(page.content, bounds.images), page=page.number)
            for page in drawn_pages(data, pages, self._settings, bounds, self._cancellation)
        ]
