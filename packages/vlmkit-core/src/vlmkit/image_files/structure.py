"""Checks the cost of opening an image file by its structure, before any decoder reads it.

A decoder's time depends on the number of a file's parts, not only on its pixels, and a part can be
a few bytes. This module counts parts, in time linear in the file's size. The limits are far above
what cameras, phones and editors write. It does not validate files, which the decoder does.
"""

from vlmkit.image_files import jpeg, png, webp
from vlmkit.image_files.too_complex import too_complex

GIF_BEGIN = b"GIF8"
GIF_EXTENSION, GIF_PICTURE, GIF_END, GIF_COMMENT = 0x21, 0x2C, 0x3B, 0xFE
MAX_BLOCKS = 2**14
MAX_COMMENT_BLOCKS = 2**10

BMP_BEGIN = b"BM"
BMP_RUN_LENGTHS = (1, 2)  # compressions that Pillow decodes in Python, pixel by pixel
MAX_RUN_LENGTH_PIXELS = 2**22


def check(content: bytes, max_scans: int) -> int:
    """Raise an error for a file that takes far longer to open than its size in pixels suggests.

    Args:
        content: the file, whose size in bytes was checked.
        max_scans: maximum number of scans of a JPEG file.

    Returns:
        The memory that a JPEG decoder takes for coefficients, in bytes; 0 for other files.

    Raises:
        ImageError: the file has more parts than images have.
    """
    if content.startswith(jpeg.BEGIN):
        return jpeg.check(content, max_scans)
    if content.startswith(png.BEGIN):
        _check_num_chunks("a PNG file", sum(1 for _ in png.chunks(content)), png.MAX_CHUNKS)
    elif content.startswith(webp.BEGIN):
        _check_num_chunks("a WebP file", sum(1 for _ in webp.chunks(content)), webp.MAX_CHUNKS)
    elif content.startswith(GIF_BEGIN):
        _check_gif(content)
    elif content.startswith(BMP_BEGIN):
        _check_bmp(content)
    return 0


def _check_num_chunks(kind: str, num_chunks: int, limit: int) -> None:
    if num_chunks == limit:
        raise too_complex(kind, f"{limit} chunks or more")


def _check_gif(content: bytes) -> None:
    """Count the blocks before the first image; later images are not decoded."""
    flags = content[10] if len(content) > 10 else 0
    position = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    num_blocks = num_comments = 0
    while position < len(content) and content[position] not in (GIF_PICTURE, GIF_END):
        is_extension = content[position] == GIF_EXTENSION
        is_comment = is_extension and content[position + 1 : position + 2] == bytes((GIF_COMMENT,))
        position += 2 if is_extension else 1
        num_blocks += 1
        while is_extension and position < len(content) and content[position]:
            position += 1 + content[position]
            num_blocks += 1
            num_comments += is_comment
            if num_blocks > MAX_BLOCKS:
                break
        position += is_extension
        if num_blocks > MAX_BLOCKS or num_comments > MAX_COMMENT_BLOCKS:
            raise too_complex("a GIF file", "more blocks before its first picture than are usual")


def _check_bmp(content: bytes) -> None:
    if int.from_bytes(content[30:34], "little") not in BMP_RUN_LENGTHS:
        return
    width = abs(int.from_bytes(content[18:22], "little", signed=True))
    height = abs(int.from_bytes(content[22:26], "little", signed=True))
    num_pixels = width * height
    if num_pixels > MAX_RUN_LENGTH_PIXELS:
        raise too_complex("a BMP file", f"run lengths for more than {MAX_RUN_LENGTH_PIXELS} pixels")
    begin = int.from_bytes(content[10:14], "little")
    if len(content) - begin > 2 * num_pixels + 2 * height + 2 + 2**16:
        raise too_complex("a BMP file", "more run lengths than pixels")
