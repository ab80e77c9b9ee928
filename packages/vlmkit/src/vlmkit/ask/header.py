"""How large a picture is, turned upright, told from its file before any pixel is decoded."""

from typing import TYPE_CHECKING, NamedTuple

from vlmkit.ask.pixels import turn_of
from vlmkit.ask.structure import MAX_CHUNKS, PNG_BEGIN, PNG_END

if TYPE_CHECKING:
    import PIL.Image

PNG_PIXELS = b"IDAT"
PNG_TAGS = frozenset({b"eXIf", b"iTXt", b"tEXt", b"zTXt"})


class Header(NamedTuple):
    """Sizes in pixels, width first.

    Attributes:
        source_size: in the file.
        size: after turning upright.
        turned: whether an orientation tag turns it.
    """

    source_size: tuple[int, int]
    size: tuple[int, int]
    turned: bool


def read_header(picture: "PIL.Image.Image") -> Header:
    """Return the sizes of a picture that was opened and need not be decoded."""
    from PIL.Image import Transpose

    turn = turn_of(picture)
    on_its_side = (
        Transpose.TRANSPOSE,
        Transpose.ROTATE_270,
        Transpose.TRANSVERSE,
        Transpose.ROTATE_90,
    )
    size = picture.size[::-1] if turn in on_its_side else picture.size
    return Header(picture.size, (size[0], size[1]), turn is not None)


def with_all_tags(content: bytes) -> bytes:
    """Return a file whose tags stand before its pixels; those of a PNG file may stand behind."""
    if not content.startswith(PNG_BEGIN):
        return content
    place, pixels, tags = len(PNG_BEGIN), 0, []
    for _ in range(MAX_CHUNKS):
        kind = content[place + 4 : place + 8]
        stop = place + 12 + int.from_bytes(content[place : place + 4], "big")
        if kind == PNG_PIXELS:
            pixels = pixels or place
        elif kind in PNG_TAGS and pixels:
            tags.append(content[place:stop])
        if not kind or kind == PNG_END:
            break
        place = stop
    return content[:pixels] + b"".join(tags) + content[pixels:] if tags else content
