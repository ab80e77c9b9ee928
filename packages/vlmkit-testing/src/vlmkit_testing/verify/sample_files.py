"""Small files of common formats, two of each, to try media loaders with."""

import io
import wave
from collections.abc import Iterator

from vlmkit.interfaces.media_loader import MediaLoader

PICTURES = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PDF", "ICO", "PPM", "TGA", "JPEG2000")
PAGED = ("TIFF", "PDF")


def sample_files(loader: MediaLoader) -> list[bytes]:
    """Return the files that a loader recognises; none if it opens other formats."""
    return [data for data in _every() if loader.recognises(data)]


def _every() -> Iterator[bytes]:
    for number, form in enumerate(PICTURES):
        for num_pages in (1, 3):
            if data := _picture(form, num_pages, seed=100 * number + 10 * num_pages):
                yield data
    for frequency in (8, 20):
        yield _sound(frequency)
    for colour in ("red", "blue"):
        yield (
            '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="48">'
            f'<rect width="32" height="24" fill="{colour}"/></svg>'
        ).encode()


def _picture(form: str, num_pages: int, seed: int) -> bytes:
    """Return a file of a format; nothing where this Pillow cannot write it."""
    from vlmkit_testing import picture

    file = io.BytesIO()
    first, *others = [picture(seed=seed + i).to_pil() for i in range(num_pages)]
    options = {"save_all": True, "append_images": others} if form in PAGED else {}
    try:
        first.save(file, form, **options)
    except (KeyError, OSError, ValueError):
        return b""
    return file.getvalue()


def _sound(frequency: int) -> bytes:
    """Return a tenth of a second of a square wave, as WAV."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        samples = ((8192 if i // frequency % 2 else -8192) for i in range(800))
        sound.writeframes(b"".join(sample.to_bytes(2, "little", signed=True) for sample in samples))
    return file.getvalue()
