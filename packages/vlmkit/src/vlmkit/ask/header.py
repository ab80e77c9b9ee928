"""What a file says of its picture before any pixel is decoded: size, orientation, and memory."""

import io
from typing import TYPE_CHECKING, NamedTuple

from vlmkit.ask import png, webp
from vlmkit.ask.decode_cost import FORMATS, DecodeCost, decode_cost
from vlmkit.ask.pixels import may_turn, tags_holder, turn_of

if TYPE_CHECKING:
    import PIL.Image


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


class Beginning(NamedTuple):
    """What stands before the pixels of a file.

    Attributes:
        size: width and height in pixels, before turning upright.
        cost: the memory that decoding takes.
        tags: a picture whose tags tell its orientation; its pixels are not read.
    """

    size: tuple[int, int]
    cost: DecodeCost
    tags: "PIL.Image.Image"


def read_beginning(content: bytes, coefficient_bytes: int = 0) -> Beginning:
    """Read a file up to its pixels.

    A WebP file is read without its decoder, which takes memory for all pixels when it is made.

    Args:
        content: the file.
        coefficient_bytes: as for :func:`vlmkit.ask.decode_cost.decode_cost`.

    Raises:
        Exception: what Pillow raises.
        ValueError: a WebP file breaks off, or its header is none.
    """
    if webp.is_webp(content):
        stated = webp.size(content)
        if stated is None or not webp.is_whole(content):
            raise ValueError("a WebP file breaks off")
        kind, mode, size, is_copied = "WEBP", "RGBA", stated, True
        picture = tags_holder(content)
    else:
        import PIL.Image

        picture = PIL.Image.open(io.BytesIO(png.without_inflated(content)), formats=FORMATS)
        # MPO files are JPEG files to everything but their class.
        kind = picture.format if picture.format in FORMATS else "JPEG"
        mode, size = picture.mode, picture.size
        is_copied = mode != "RGB" or picture.has_transparency_data
    cost = decode_cost(
        kind,
        mode,
        size,
        num_file_bytes=len(content),
        is_copied=is_copied,
        may_turn=may_turn(picture) or _has_late_tags(content),
        coefficient_bytes=coefficient_bytes,
    )
    return Beginning(size, cost, picture)


def read_header(beginning: Beginning) -> Header:
    """Return the sizes of a picture that was opened and need not be decoded."""
    from PIL.Image import Transpose

    turn = turn_of(beginning.tags)
    on_its_side = (
        Transpose.TRANSPOSE,
        Transpose.ROTATE_270,
        Transpose.TRANSVERSE,
        Transpose.ROTATE_90,
    )
    size = beginning.size[::-1] if turn in on_its_side else beginning.size
    return Header(beginning.size, (size[0], size[1]), turn is not None)


def _has_late_tags(content: bytes) -> bool:
    """Return whether tags stand behind the pixels of a PNG file, which nothing has read yet."""
    return content.startswith(png.BEGIN) and any(
        png.can_orient(content, chunk) for chunk in png.chunks(content)
    )


def with_all_tags(content: bytes) -> bytes:
    """Return a file whose tags stand before its pixels; those of a PNG file may stand behind."""
    if not content.startswith(png.BEGIN):
        return content
    pixels, tags = 0, []
    for chunk in png.chunks(content):
        if chunk.kind == png.PIXELS:
            pixels = pixels or chunk.start
        elif pixels and png.can_orient(content, chunk):
            tags.append(content[chunk.start : chunk.stop])
    return content[:pixels] + b"".join(tags) + content[pixels:] if tags else content
