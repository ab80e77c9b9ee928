"""What an operator can set about PDF files."""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import Seconds


class PdfSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pages become pictures, and what one file may take.

    Attributes:
        dpi: pixels for each inch of a page.
        max_page_pixels: width times height of one picture; a larger page is drawn smaller.
        timeout_s: time for one file.
        memory_bytes: address space of the process that opens it, where the system can bound it.
    """

    dpi: Annotated[int, Meta(ge=18, le=600)] = 144
    max_page_pixels: Annotated[int, Meta(ge=10_000, le=50_000_000)] = 4_000_000
    timeout_s: Seconds = 20.0
    memory_bytes: Annotated[int, Meta(ge=256 * 2**20, le=2**53 - 1)] = 2**30
