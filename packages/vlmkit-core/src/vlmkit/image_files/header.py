"""Reads size, orientation and memory cost of an image file without decoding a pixel."""

import io
from typing import TYPE_CHECKING, NamedTuple

from vlmkit.errors import ImageError
from vlmkit.image_files import png, tiff, webp
from vlmkit.image_files.decode_cost import COSTS, DECODED_HERE, DecodeCost, decode_cost
from vlmkit.image_files.iso_image import IsoHeader, is_avif, read_iso_header
from vlmkit.image_files.pixels import may_turn, oriented, tags_holder, turn_of

if TYPE_CHECKING:
    import PIL.Image


class Header(NamedTuple):
    """The sizes of an image in pixels, width first.

    Attributes:
        source_size: the size in the file.
        size: the size after turning upright.
        turned: whether an orientation tag rotates or mirrors the image.
    """

    source_size: tuple[int, int]
    size: tuple[int, int]
    turned: bool


class Beginning(NamedTuple):
    """The header data of a file.

    Attributes:
        size: width and height in pixels, before turning upright.
        cost: the memory that decoding takes.
        tags: an image object with the orientation tags; its pixels are not read.
    """

    size: tuple[int, int]
    cost: DecodeCost
    tags: "PIL.Image.Image"


def read_beginning(content: bytes, coefficient_bytes: int = 0) -> Beginning:
    """Read a file up to its pixels.

    WebP and AVIF files are read without their decoders, which allocate memory when they are
    created. TIFF files are read without most of their tags.

    Args:
        content: the file.
        coefficient_bytes: memory of the coefficients of a JPEG file.

    Raises:
        Exception: any error of Pillow.
        ImageError: the kind of image is not supported, or it takes too long to decode.
        ValueError: the file is truncated, or its header is invalid.
    """
    if tiff.is_tiff(content):
        return _of_page(tiff.first_page(content), len(content))
    if is_avif(content):
        return _of_avif(read_iso_header(content, "an AVIF file"), len(content))
    if webp.is_webp(content):
        stated = webp.size(content)
        if stated is None or not webp.is_whole(content):
            raise ValueError("a WebP file breaks off")
        kind, mode, size, is_copied = "WEBP", "RGBA", stated, True
        picture = tags_holder(content)
    else:
        import PIL.Image

        picture = PIL.Image.open(io.BytesIO(png.without_inflated(content)), formats=DECODED_HERE)
        # MPO files are JPEG files; only their class in Pillow differs.
        kind = picture.format if picture.format in DECODED_HERE else "JPEG"
        mode, size = picture.mode, picture.size
        is_copied = mode != "RGB" or picture.has_transparency_data
    cost = decode_cost(
        COSTS[kind],
        mode,
        size,
        num_file_bytes=len(content),
        is_copied=is_copied,
        may_turn=may_turn(picture) or _has_late_tags(content),
        buffer_bytes=coefficient_bytes,
    )
    return Beginning(size, cost, picture)


def _of_page(page: tiff.Page, num_file_bytes: int) -> Beginning:
    """Return the header data of a TIFF page; Pillow determines the mode of its pixels."""
    import PIL.Image

    page.check()
    picture = PIL.Image.open(io.BytesIO(page.file(has_pixels=False)), formats=("TIFF",))
    if picture.mode == "LAB":
        raise ImageError(
            "image is a TIFF file of CIELab colours, which are not converted",
            hint="save it again, in RGB",
        )
    cost = decode_cost(
        COSTS["TIFF"],
        picture.mode,
        picture.size,
        num_file_bytes=num_file_bytes,
        is_copied=picture.mode != "RGB",
        may_turn=page.orientation != 1,
        buffer_bytes=page.segment_bytes,
    )
    return Beginning(picture.size, cost, oriented(page.orientation))


def _of_avif(header: IsoHeader, num_file_bytes: int) -> Beginning:
    width, height = size = header.coded_size  # the decoder does not crop
    cost = decode_cost(
        COSTS["AVIF"],
        "L" if header.is_grey and not header.has_alpha else "RGBA",
        size,
        num_file_bytes=num_file_bytes,
        is_copied=True,
        may_turn=header.is_turned,
        buffer_bytes=int(header.plane_bytes * width * height),
    )
    return Beginning(size, cost, oriented(header.orientation))


def read_header(beginning: Beginning) -> Header:
    """Return the sizes of an image from its header data; decodes nothing."""
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
    """Return whether a PNG file may have orientation tags after its pixels, not yet read."""
    return content.startswith(png.BEGIN) and any(
        png.can_orient(content, chunk) for chunk in png.chunks(content)
    )


def with_all_tags(content: bytes) -> bytes:
    """Return a file with its orientation tags before the pixels; a PNG file may have them after."""
    if not content.startswith(png.BEGIN):
        return content
    pixels, tags = 0, []
    for chunk in png.chunks(content):
        if chunk.kind == png.PIXELS:
            pixels = pixels or chunk.start
        elif pixels and png.can_orient(content, chunk):
            tags.append(content[chunk.start : chunk.stop])
    return content[:pixels] + b"".join(tags) + content[pixels:] if tags else content
