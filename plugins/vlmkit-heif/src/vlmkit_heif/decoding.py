"""Decodes a HEIC file with libheif, in a separate process with limits of memory and time."""

import io

import PIL.Image
import pillow_heif

pillow_heif.options.DECODE_THREADS = 1
for _name in ("THUMBNAILS", "DEPTH_IMAGES", "AUX_IMAGES"):
    if hasattr(pillow_heif.options, _name):
        setattr(pillow_heif.options, _name, False)


def picture(content: bytes) -> PIL.Image.Image:
    """Return the primary image, rotated as the file says."""
    file = pillow_heif.open_heif(io.BytesIO(content), convert_hdr_to_8bit=True)
    shown = file[file.primary_index]
    mode, size, stride = shown.mode, shown.size, shown.stride
    return PIL.Image.frombuffer(mode, size, shown.data, "raw", mode, stride, 1)
