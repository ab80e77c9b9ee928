"""The settings of vlmkit-pdf."""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import Seconds


class PdfSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pages become images, and the limits of one file.

    Attributes:
        dpi: pixels per inch of a page.
        max_page_pixels: the most pixels of one image; larger pages are scaled down.
        timeout_s: the most time for one file.
        memory_bytes: the address space of the process that opens it, where the system can limit it.
    """

    dpi: Annotated[int, Meta(ge=18, le=600)] = 144
    max_page_pixels: Annotated[int, Meta(ge=10_000, le=50_000_000)] = 4_000_000
    timeout_s: Seconds = 20.0
    memory_bytes: Annotated[int, Meta(ge=256 * 2**20, le=2**53 - 1)] = 2**30
