"""PDF files for tests: scanned, written, endless and locked."""

import io
import random
from collections.abc import Sequence

from PIL import Image as PilImage

COLOURS = ("red", "green", "blue", "white", "black")


def scanned(num_pages: int = 1, size: tuple[int, int] = (200, 100)) -> bytes:
    """Return a document whose pages are images of one colour, one pixel a point."""
    pages = [PilImage.new("RGB", size, COLOURS[n % len(COLOURS)]) for n in range(num_pages)]
    content = io.BytesIO()
    pages[0].save(content, "PDF", save_all=True, append_images=pages[1:])
    return content.getvalue()


def written(
    *texts: str, size: Sequence[float] = (200, 100), stream: bytes = b"", catalog: bytes = b""
) -> bytes:
    """Return a handmade document with a line of text on each page."""
    num = len(texts)
    kids = b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(num))
    box = b" ".join(f"{side:f}".encode() for side in size)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R %b >>" % catalog,
        b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, num),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(texts):
        drawn = stream or b"BT /F1 24 Tf 10 40 Td (%b) Tj ET" % text.encode()
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %b] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (box, 5 + 2 * n),
            b"<< /Length %d >>\nstream\n%b\nendstream" % (len(drawn), drawn),
        ]
    return _file(objects)


def _file(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    content, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(content))
        content += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return content + (
        b"xref\n0 %d\n0000000000 65535 f \n%btrailer\n<< /Size %d /Root 1 0 R %b >>\n"
        b"startxref\n%d\n%%%%EOF\n"
    ) % (len(objects) + 1, table, len(objects) + 1, trailer, len(content))


def endless() -> bytes:
    """Return a document of one page that would take hours, with millions of tiles."""
    fills = b"/Pattern cs /P scn " + b"0 0 2000 2000 re f " * 64
    tile = b"1 0 0 rg 0 0 1 1 re f"
    page = (
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 2000 2000] /Contents 4 0 R "
        b"/Resources << /Pattern << /P 5 0 R >> >> >>"
    )
    pattern = (
        b"<< /Type /Pattern /PatternType 1 /PaintType 1 /TilingType 1 /BBox [0 0 2000 2000] "
        b"/XStep .7 /YStep .7 /Resources << >> /Length %d >>\nstream\n%b\nendstream"
    ) % (len(tile), tile)
    content = b"<< /Length %d >>\nstream\n%b\nendstream" % (len(fills), fills)
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    return _file([b"<< /Type /Catalog /Pages 2 0 R >>", pages, page, content, pattern])


def locked() -> bytes:
    """Return a document with an unknown password."""
    digits = random.Random(0).randbytes(32).hex().encode()
    trailer = (
        b"/Encrypt << /Filter /Standard /V 2 /R 3 /Length 128 /P -4 /O <%b> /U <%b> >> "
        b"/ID [<00> <00>]"
    ) % (digits, digits)
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>"
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    return _file([b"<< /Type /Catalog /Pages 2 0 R >>", pages, page], trailer)
