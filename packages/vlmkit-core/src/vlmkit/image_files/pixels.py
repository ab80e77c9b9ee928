"""Decodes checked image files to the common format: upright, RGB, 8 bits per colour.

Never passes on the text of a decoder's error. Does not check whether a file may be decoded, which
:class:`vlmkit.Image` does.
"""

import io
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.image_files import jpeg, png, tiff, webp
from vlmkit.image_files.decode_cost import DECODED_HERE, RGB_BYTES, STRIP_PIXELS

if TYPE_CHECKING:
    import PIL.Image

ORIENTATION_TAG = 0x0112
ORIENTING = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")  # may hold that tag
NO_MEMORY = "out of memory"  # prefix of Pillow's memory errors other than MemoryError
BREAKS_OFF = "image file is truncated"  # prefix of an error that memory never causes
BROKEN = "image is broken: its pixels cannot be decoded"
SUBJECT = "this image"  # the subject of memory errors


class Pixels(NamedTuple):
    """An upright RGB image, and whether an orientation tag rotated or mirrored it."""

    picture: "PIL.Image.Image"
    turned: bool


def decoded(content: bytes, peak_bytes: int) -> Pixels:
    """Return the pixels of a file whose header was checked.

    A decoder that gets no memory may report a broken file. Decoding is then tried again, because
    the shortage may have been short. A file counts as broken if there was enough memory both times.

    Args:
        content: the file.
        peak_bytes: memory that decoding takes.

    Raises:
        ImageError: the pixels cannot be decoded.
        OutOfMemory: this machine has too little free memory for them.
    """
    try:
        return _decoded(content)
    except Exception as error:  # noqa: BLE001 - a decoder may raise anything
        if is_short_of_memory(error, peak_bytes):
            raise OutOfMemory(SUBJECT) from _without_frames(error)
        if not _hides_reasons(content, error):
            raise broken() from _without_frames(error)
    try:
        return _decoded(content)
    except Exception as error:  # noqa: BLE001 - as above
        raise _broken(error, peak_bytes) from _without_frames(error)


def _without_frames(error: BaseException) -> BaseException:
    """Return an error after removing its tracebacks and those of its causes, which hold pixels.

    Errors are passed to other threads, and may be in a reference cycle that is collected late.
    """
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


def _hides_reasons(content: bytes, error: Exception) -> bool:
    """Return whether a decoder may have lacked memory and reported another error."""
    if webp.is_webp(content):
        return True
    return content.startswith(jpeg.BEGIN) and not str(error).startswith(BREAKS_OFF)


def upright(picture: "PIL.Image.Image") -> Pixels:
    """Return a copy of a Pillow image's pixels; errors as for :func:`decoded`."""
    try:
        picture.load()
        return _upright(picture, is_shared=True)
    except Exception as error:
        raise _broken(error, picture.width * picture.height * RGB_BYTES) from error


def broken() -> ImageError:
    """Return the error for a file whose pixels cannot be decoded."""
    return ImageError(BROKEN, hint="check that the file is complete, or save it again")


def _broken(error: Exception, needed_bytes: int) -> ImageError | OutOfMemory:
    return OutOfMemory(SUBJECT) if is_short_of_memory(error, needed_bytes) else broken()


def is_short_of_memory(error: Exception, needed_bytes: int = 0) -> bool:
    """Return whether a decoder failed because of too little memory.

    Args:
        error: the decoder's error.
        needed_bytes: memory that decoding takes; compared with free memory for other errors.
    """
    is_stated = isinstance(error, MemoryError) or str(error).startswith(NO_MEMORY)
    return is_stated or not has_room(needed_bytes)


def has_room(num_bytes: int) -> bool:
    """Return whether ``num_bytes`` of memory can be allocated now."""
    try:
        mmap.mmap(-1, max(1, num_bytes)).close()
    except (OSError, MemoryError):
        return False
    return True


def _decoded(content: bytes) -> Pixels:
    return _upright(_loaded_webp(content) if webp.is_webp(content) else _loaded(content))


def _loaded(content: bytes) -> "PIL.Image.Image":
    """Return the pixels and tags of a file, without other data of its decoder."""
    import PIL.Image

    picture = PIL.Image.open(io.BytesIO(png.without_inflated(content)), formats=DECODED_HERE)
    picture.load()
    return picture._new(picture.im)  # noqa: SLF001 - no public way without a copy


def _loaded_webp(content: bytes) -> "PIL.Image.Image":
    """Return the first frame of a WebP file.

    Does not use ``PIL.Image.open``, which keeps the decoder with two canvases and copies the frame
    once more.
    """
    import PIL.Image
    from PIL import _webp

    decoder = _webp.WebPAnimDecoder(content)
    size, *_, mode = decoder.get_info()
    frame = decoder.get_next()
    if frame is None:
        raise ValueError("a frame of a WebP file cannot be decoded")
    del decoder
    picture = PIL.Image.frombuffer(mode, size, frame[0], "raw", mode, 0, 1)
    picture.info.update(webp.tags(content))
    return picture


def loaded_avif(content: bytes) -> "PIL.Image.Image":
    """Return the first frame of an AVIF file.

    Does not use ``PIL.Image.open``, which keeps the decoder and its planes besides two copies of
    the pixels.
    """
    import PIL.Image
    from PIL import _avif

    decoder = _avif.AvifDecoder(content, "auto", 1)
    size, _, mode, *_, orientation, _ = decoder.get_info()
    pixels = decoder.get_frame(0)[0]
    del decoder
    picture = PIL.Image.frombuffer(mode, size, pixels, "raw", mode, 0, 1)
    picture.info.update(_orienting(orientation))
    return picture


def loaded_tiff(content: bytes) -> "PIL.Image.Image":
    """Return the first page of a TIFF file that is not a thumbnail or mask."""
    import PIL.Image

    page = tiff.first_page(content)
    opened = PIL.Image.open(io.BytesIO(page.file()), formats=("TIFF",))
    opened.load()
    picture = opened._new(opened.im)  # noqa: SLF001 - no public way without a copy
    picture.info.update(_orienting(page.orientation))
    return picture


def _orienting(orientation: int) -> dict[str, bytes]:
    """Return an orientation as an entry of Pillow's ``info``."""
    import PIL.Image

    exif = PIL.Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    return {"exif": exif.tobytes()}


def oriented(orientation: int) -> "PIL.Image.Image":
    """Return an image object without pixels that has an orientation."""
    import PIL.Image

    picture = PIL.Image.Image()
    picture.info.update(_orienting(orientation))
    return picture


def tags_holder(content: bytes) -> "PIL.Image.Image":
    """Return an image object without pixels that has the tags of a WebP file."""
    import PIL.Image

    picture = PIL.Image.Image()
    picture.info.update(webp.tags(content))
    return picture


def upright_of(picture: "PIL.Image.Image") -> Pixels:
    """Return the pixels of a decoder's result, which must not be shared."""
    return _upright(picture)


def _upright(picture: "PIL.Image.Image", *, is_shared: bool = False) -> Pixels:
    """Return a loaded image upright and in RGB.

    Args:
        picture: an image with loaded pixels.
        is_shared: whether other code references the image, so that its pixels must be copied.
    """
    turn = turn_of(picture)
    if turn is not None:
        picture = picture.transpose(turn)
    if is_shared or picture.mode != "RGB" or picture.has_transparency_data:
        picture = _to_rgb(picture)
    else:
        picture = picture._new(picture.im)  # noqa: SLF001 - without the parsed tags
    picture.info.clear()  # the orientation must not be applied twice
    return Pixels(picture, turn is not None)


def may_turn(picture: "PIL.Image.Image") -> bool:
    """Return whether an image has metadata that can hold an orientation tag."""
    return any(name in picture.info for name in ORIENTING)


def turn_of(picture: "PIL.Image.Image") -> "PIL.Image.Transpose | None":
    """Return the transposition of the orientation tag; None if it is missing or invalid.

    Uses only the metadata that was read so far, and decodes no pixels.
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
        tags = Image.getexif(picture)  # the method of PNG images would decode the pixels
        return turns.get(tags.get(ORIENTATION_TAG, 1))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - broken tags do not make the pixels invalid
        return None


def _to_rgb(picture: "PIL.Image.Image") -> "PIL.Image.Image":
    """Return a copy in RGB without another full-size copy."""
    scale = None
    if picture.mode.startswith("I;16") or picture.mode in ("I", "F"):
        # Pillow clips wide greys to 255, but users expect the whole range to be scaled.
        _, high = picture.getextrema()
        scale = 255.0 / 65535.0 if picture.mode.startswith("I") else 255.0 / max(float(high), 1e-9)  # type: ignore[arg-type]
    elif not picture.has_transparency_data:
        return picture.convert("RGB")
    import PIL.Image

    converted = PIL.Image.new("RGB", picture.size)
    for strip in strips(picture.size):
        piece = picture.crop(strip)
        converted.paste(_on_white(piece) if scale is None else _grey(piece, scale), strip[:2])
    return converted


def strips(size: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield boxes of whole rows from top to bottom, so that a large image is copied in pieces."""
    width, height = size
    num_rows = max(1, STRIP_PIXELS // width)
    for top in range(0, height, num_rows):
        yield 0, top, width, min(top + num_rows, height)


def _grey(strip: "PIL.Image.Image", scale: float) -> "PIL.Image.Image":
    """Return greys of 8 bits; ignores a transparent grey, which could match other values here."""
    return strip.convert("F").point(lambda value: value * scale).convert("L").convert("RGB")


def _on_white(strip: "PIL.Image.Image") -> "PIL.Image.Image":
    import PIL.Image

    layer = strip.convert("RGBA")
    paper = PIL.Image.new("RGBA", layer.size, "white")
    return PIL.Image.alpha_composite(paper, layer).convert("RGB")
