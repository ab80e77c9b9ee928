"""Pixels as every model wants them: upright, RGB, 8 bits a colour. How a checked file becomes that.

No text of the decoder's errors leaves this module. What may be decoded at all is the image's
business.
"""

import io
import mmap
from typing import TYPE_CHECKING, NamedTuple

from vlmkit.errors import ImageError, OutOfMemory

if TYPE_CHECKING:
    import PIL.Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
ORIENTATION_TAG = 0x0112
NO_MEMORY = "out of memory"  # how words of Pillow's decoders begin that are no MemoryError
DECODER_BYTES = 8  # for each pixel: coefficients of a progressive JPEG file, and a copy
STRIP_ROWS = 256  # converted at once, where that takes several steps
SUBJECT = "this image"  # what there was no memory for


class Pixels(NamedTuple):
    """An upright RGB picture, and whether an orientation tag turned it."""

    picture: "PIL.Image.Image"
    turned: bool


def decoded(content: bytes) -> Pixels:
    """Return the pixels of a file whose header was checked.

    Raises:
        ImageError: they cannot be decoded.
        OutOfMemory: this machine has no room for them now.
    """
    import PIL.Image

    size = (0, 0)
    try:
        picture = PIL.Image.open(io.BytesIO(content), formats=FORMATS)
        size = picture.size
        return _upright(picture)
    except Exception as error:
        raise _broken(error, size) from error


def upright(picture: "PIL.Image.Image") -> Pixels:
    """Return a copy of the pixels of what Pillow opened; errors as for :func:`decoded`."""
    try:
        return _upright(picture)
    except Exception as error:
        raise _broken(error, picture.size) from error


def meant(error: Exception, message: str, size: tuple[int, int]) -> ImageError | OutOfMemory:
    """Return what an error of the decoder means; want of memory is no fault of the picture.

    Args:
        error: of the decoder.
        message: what is wrong if it is not that.
        size: of the picture, in pixels, as far as it is known.
    """
    is_stated = isinstance(error, MemoryError) or str(error).startswith(NO_MEMORY)
    if is_stated or not _has_room(size[0] * size[1] * DECODER_BYTES):
        return OutOfMemory(SUBJECT)
    return ImageError(message)


def _broken(error: Exception, size: tuple[int, int]) -> ImageError | OutOfMemory:
    return meant(error, "image is broken: its pixels cannot be decoded", size)


def _has_room(num_bytes: int) -> bool:
    """Tell whether there is memory: a decoder that got none says that the file is broken."""
    try:
        mmap.mmap(-1, max(1, num_bytes)).close()
    except (OSError, MemoryError):
        return False
    return True


def _upright(picture: "PIL.Image.Image") -> Pixels:
    picture.load()
    turn = turn_of(picture)
    pixels = _to_rgb(picture if turn is None else picture.transpose(turn))
    pixels.info.clear()  # they are a copy, whose tags nobody must follow a second time
    return Pixels(pixels, turn is not None)


def turn_of(picture: "PIL.Image.Image") -> "PIL.Image.Transpose | None":
    """Return what the orientation tag asks for; None where it is absent, wrong or unreadable.

    Only what was read of the file so far is looked at; pixels are not.
    """
    from PIL.Image import Image, Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    try:
        tags = Image.getexif(picture)  # a PNG file's own way would decode it first
        return turns.get(tags.get(ORIENTATION_TAG, 1))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the pixels are good, whatever is wrong with the tags
        return None


def _to_rgb(picture: "PIL.Image.Image") -> "PIL.Image.Image":
    """Return a copy in RGB; no other one of its size is made on the way."""
    scale = None
    if picture.mode.startswith("I;16") or picture.mode in ("I", "F"):
        # Pillow clips wide greys to 255 where people expect the whole range to be scaled.
        _, high = picture.getextrema()
        scale = 255.0 / 65535.0 if picture.mode.startswith("I") else 255.0 / max(float(high), 1e-9)  # type: ignore[arg-type]
    elif not picture.has_transparency_data:
        return picture.convert("RGB")
    import PIL.Image

    width, height = picture.size
    made = PIL.Image.new("RGB", picture.size)
    for top in range(0, height, STRIP_ROWS):
        strip = picture.crop((0, top, width, min(top + STRIP_ROWS, height)))
        made.paste(_on_white(strip) if scale is None else _grey(strip, scale), (0, top))
    return made


def _grey(strip: "PIL.Image.Image", scale: float) -> "PIL.Image.Image":
    """Return greys of 8 bits; what is transparent of wide ones would hide others here."""
    return strip.convert("F").point(lambda value: value * scale).convert("L").convert("RGB")


def _on_white(strip: "PIL.Image.Image") -> "PIL.Image.Image":
    import PIL.Image

    layer = strip.convert("RGBA")
    paper = PIL.Image.new("RGBA", layer.size, "white")
    return PIL.Image.alpha_composite(paper, layer).convert("RGB")
