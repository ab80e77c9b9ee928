"""Decodes images in a separate process.

For decoders that would hold the GIL for seconds, print parts of files, or whose memory and time do
not follow from a header. The size of the result is compared with the header.
"""

from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.image_files import decoder_child
from vlmkit.image_files.decoder_process import Answer, Calling, DecoderEnded, decoder_process
from vlmkit.image_files.iso_image import is_avif
from vlmkit.image_files.pixels import SUBJECT, Pixels, broken, has_room, strips
from vlmkit.image_files.tiff import is_tiff

OWN_DECODERS = (
    (is_avif, "vlmkit.image_files.pixels:loaded_avif"),
    (is_tiff, "vlmkit.image_files.pixels:loaded_tiff"),
)
SPARE_BYTES = 64 * 2**20  # for memory that a decoder maps and never touches
CPU_S = 20
TIMEOUT_S = 60.0  # allows for an overloaded machine
MAX_LINE_BYTES = 1024


def own_decoder(content: bytes) -> str:
    """Return the function that decodes a file in a process, as ``module:name``; empty if none."""
    return next((name for is_kind, name in OWN_DECODERS if is_kind(content)), "")


def decoded(
    decoder: str,
    content: bytes,
    size: tuple[int, int],
    peak_bytes: int,
    calling: Calling | None = None,
) -> Pixels:
    """Return the pixels of a file.

    Args:
        decoder: the function that turns a file's content into a Pillow image, as ``module:name``.
        content: the file.
        size: the size in its header, after turning upright.
        peak_bytes: memory that decoding takes.
        calling: registers a callback that ends the decoder early.

    Raises:
        ImageError: the pixels cannot be decoded, have another size, or take too long.
        OutOfMemory: this machine has too little free memory for them.
    """
    job = {
        "decoder": decoder,
        "num_bytes": len(content),
        "memory_bytes": peak_bytes + SPARE_BYTES,
        "cpu_s": CPU_S,
    }
    script = decoder_child.__file__
    try:
        with decoder_process(script, job, content, timeout_s=TIMEOUT_S, calling=calling) as answer:
            return _received(answer, size)
    except DecoderEnded as error:
        if error.is_late:
            raise ImageError(
                f"image takes longer than {TIMEOUT_S:g} s to decode",
                code="image_too_complex",
                hint="save it again, as an ordinary PNG or JPEG file",
            ) from None
    except (OSError, MemoryError) as error:  # no memory for a process or for the pixels
        raise OutOfMemory(SUBJECT) from error
    if not has_room(peak_bytes):
        raise OutOfMemory(SUBJECT)
    raise broken()


def _received(answer: Answer, size: tuple[int, int]) -> Pixels:
    """Return the pixels from the process's answer, which is untrusted."""
    import PIL.Image

    found = answer.line(MAX_LINE_BYTES)
    if found.get("problem") == "missing":
        raise ImageError(
            "image is of a format that the installed Pillow does not decode",
            hint="save it as PNG or JPEG, or install Pillow from PyPI",
        )
    if found.get("size") != list(size):
        raise EOFError
    picture = PIL.Image.new("RGB", size)
    for strip in strips(size):
        width, height = strip[2] - strip[0], strip[3] - strip[1]
        rows = answer.read(3 * width * height)
        piece = PIL.Image.frombuffer("RGB", (width, height), rows, "raw", "RGB", 0, 1)
        picture.paste(piece, strip[:2])
    return Pixels(picture, bool(found.get("turned")))
