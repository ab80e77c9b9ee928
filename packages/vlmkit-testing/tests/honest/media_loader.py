"""A loader of toy documents with compressed pages of pixels, sound and text."""

import hashlib
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence as Seq
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from vlmkit.errors import MediaError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.media import MediaPart
from vlmkit.types.message import ImagePart, Part, TextPart
from vlmkit.types.pages import Pages

MAGIC = b"SHEETS\n"


class Drawn(msgspec.Struct, tag=True):
    """An image page: its size and its compressed pixels."""

    width: int
    height: int
    pixels: bytes


class Heard(msgspec.Struct, tag=True):
    """A sound page: its compressed samples."""

    samples: bytes


class Said(msgspec.Struct, tag=True):
    """A text page."""

    text: str


Sheet = Drawn | Heard | Said


@dataclass(frozen=True)
class Tone:
    """A sound as a medium."""

    samples: bytes

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the samples."""
        return hashlib.sha256(self.samples).digest()

    @property
    def num_bytes(self) -> int:
        """The number of sample bytes."""
        return len(self.samples)


class SheetLoader:
    """Opens toy documents."""

    def recognises(self, data: bytes) -> bool:
        """Compare the first bytes."""
        return data.startswith(MAGIC)

    def load(self, data: bytes, bounds: PipelineSettings) -> Seq[Part]:
        """Return all pages."""
        return self.parts(enumerate(sheets_of(data), 1), data, bounds)

    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        """Return the chosen pages."""
        sheets = sheets_of(data)
        numbers = list(pages) if len(pages) <= len(sheets) else [len(sheets) + 1]
        if numbers[-1] > len(sheets):
            raise MediaError(f"a document has {len(sheets)} pages")
        return self.parts([(n, sheets[n - 1]) for n in numbers], data, bounds)

    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        """Return the parts of pages, within the limits."""
        if len(data) > bounds.max_media_bytes:
            raise MediaError("a document is too large")
        parts: list[Part] = []
        left_bytes, left_images = bounds.max_media_bytes, bounds.max_images
        for number, sheet in sheets:
            if isinstance(sheet, Said):
                parts.append(TextPart(sheet.text))
            elif isinstance(sheet, Heard):
                samples = inflated(sheet.samples, left_bytes)
                left_bytes -= len(samples)
                parts.append(self.heard(samples))
            else:
                left_images -= 1
                if left_images < 0:
                    raise MediaError("a document has too many pictures")
                parts.append(ImagePart(drawn(sheet, bounds), page=number))
        return parts

    def heard(self, samples: bytes) -> MediaPart:
        """Return the part of a sound page."""
        return MediaPart("audio", Tone(samples))


class SlowSheetLoader(SheetLoader):
    """Opens toy documents slowly, until their request is cancelled."""

    page_s = 0.01

    def __init__(self, cancellation: Cancellation | None = None) -> None:
        self._cancellation = cancellation or Cancellation()

    def for_request(self, cancellation: Cancellation) -> "SlowSheetLoader":
        """Return a loader that stops when the request is cancelled."""
        return type(self)(cancellation)

    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        """Return the parts of pages."""
        return super().parts(self._checked(sheets), data, bounds)

    def _checked(self, sheets: Iterable[tuple[int, Sheet]]) -> Iterator[tuple[int, Sheet]]:
        for each in sheets:
            self._cancellation.check()
            time.sleep(self.page_s)
            yield each


def sheets_of(data: bytes) -> list[Sheet]:
    """Return the pages of a document."""
    try:
        sheets = msgspec.msgpack.decode(data[len(MAGIC) :], type=list[Sheet])
    except ValueError as error:  # errors of msgspec are
        raise MediaError("a document is broken") from error
    if not sheets:
        raise MediaError("a document has no page")
    return sheets


def inflated(content: bytes, most: int) -> bytes:
    """Return decompressed data; never hold more than the limit in memory."""
    try:
        found = zlib.decompressobj().decompress(content, most + 1)
    except zlib.error as error:
        raise MediaError("a document is broken") from error
    if not 0 < len(found) <= most:
        raise MediaError("a sound or a picture of a document is empty, or too large")
    return found


def drawn(sheet: Drawn, bounds: PipelineSettings) -> Image:
    """Return an image page."""
    Image.of_size((sheet.width, sheet.height), bounds.images)
    num_bytes = sheet.width * sheet.height * 3
    pixels = inflated(sheet.pixels, num_bytes)
    if len(pixels) != num_bytes:
        raise MediaError("a picture of a document is cut")
    array = np.frombuffer(pixels, np.uint8).reshape(sheet.height, sheet.width, 3)
    return Image.open(array.copy(), bounds.images)


def document(*sheets: Any) -> bytes:
    """Return a document file of text, sound and image pages."""
    return MAGIC + msgspec.msgpack.encode([_sheet(sheet) for sheet in sheets])


def _sheet(content: str | bytes | Image) -> Sheet:
    if isinstance(content, str):
        return Said(content)
    if isinstance(content, bytes):
        return Heard(zlib.compress(content))
    return Drawn(content.width, content.height, zlib.compress(content.to_pil().tobytes()))


class NoteLoader:
    """Opens files of text: a mark, and lines in UTF-8. It has neither images nor pages."""

    mark = b"NOTE 1\n"

    def recognises(self, data: bytes) -> bool:
        """Compare the first bytes."""
        return data.startswith(self.mark)

    def load(self, data: bytes, bounds: PipelineSettings) -> Seq[Part]:
        """Return one text for each line; a file of no line is broken."""
        if len(data) > bounds.max_media_bytes:
            raise MediaError("a note is too long")
        try:
            lines = data.removeprefix(self.mark).decode().splitlines()
        except UnicodeDecodeError as error:
            raise MediaError("a note is no text") from error
        if not lines:
            raise MediaError("a note is empty")
        return tuple(map(TextPart, lines))
