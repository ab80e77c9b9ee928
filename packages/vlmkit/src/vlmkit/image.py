"""A picture that was checked, decoded and turned upright.

Everything hostile about picture files ends here: size and scans are read from the file before a
pixel is decoded, only listed formats are opened, and no text of the decoder's errors leaves this
module.
Resizing and normalising for a model is the tokenizer's business; fetching by URL is the server's.
"""

import binascii
import hashlib
import io
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

import msgspec

from vlmkit import jpeg
from vlmkit.errors import ImageError, OutOfMemory

if TYPE_CHECKING:
    import PIL.Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
ORIENTATION_TAG = 0x0112
NO_MEMORY = "out of memory"  # how words of Pillow's decoders begin that are no MemoryError
STRIP_ROWS = 256  # hashed at once, so that a large picture is not copied whole
BASE64_PIECE_CHARS = 2**20  # a multiple of 4, so that pieces decode alone
ImageSource = Union["Image", str, PathLike[str], bytes, Any]  # Any: a PIL image or an array

Positive = Annotated[int, msgspec.Meta(ge=1)]


class ImageLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is refused before it can cost memory or break a model.

    Attributes:
        max_bytes: size of the encoded file.
        max_pixels: width times height, read from the header.
        min_side_pixels: shortest side that a model's processor is trusted with.
        max_aspect_ratio: longest side divided by the shortest.
        max_scans: times that a JPEG file may go over its pixels; 10 are usual in progressive ones.
    """

    max_bytes: Positive = 32 * 2**20
    max_pixels: Positive = 50_000_000
    min_side_pixels: Positive = 2
    max_aspect_ratio: Annotated[float, msgspec.Meta(ge=1.0)] = 100.0
    max_scans: Positive = 100


class Image:
    """An upright RGB picture with a content digest.

    Make one with :meth:`open`. The object is immutable; its pixels are shared, never copied.
    """

    def __init__(
        self, picture: "PIL.Image.Image", *, source_size: tuple[int, int], turned: bool
    ) -> None:
        self._picture = picture
        self.source_size = source_size
        self.turned = turned

    def __repr__(self) -> str:
        return f"Image({self.width}x{self.height}, {self.digest.hex()[:12]})"

    @property
    def width(self) -> int:
        """Width in pixels, after turning upright."""
        return self._picture.width

    @property
    def height(self) -> int:
        """Height in pixels, after turning upright."""
        return self._picture.height

    @cached_property
    def digest(self) -> bytes:
        """Sha256 of the size and every pixel: equal pictures have equal digests."""
        digest = hashlib.sha256(f"RGB {self.width}x{self.height}\0".encode())
        for top in range(0, self.height, STRIP_ROWS):
            strip = (0, top, self.width, min(top + STRIP_ROWS, self.height))
            digest.update(self._picture.crop(strip).tobytes())
        return digest.digest()

    def to_pil(self) -> "PIL.Image.Image":
        """Return the picture as a PIL image in mode RGB; do not modify it."""
        return self._picture

    @classmethod
    def open(cls, source: ImageSource, limits: ImageLimits | None = None) -> "Image":
        """Check, decode and turn a picture upright.

        Animations give their first frame; transparency is laid on white; 16-bit, palette, grey
        and CMYK pictures become 8-bit RGB.

        Args:
            source: a path, the bytes of a file, a ``data:`` URL, a PIL image, a uint8 array
                ``[height, width, 3]``, or an Image, which is returned as it is.
            limits: what to refuse; the defaults of :class:`ImageLimits` when None.

        Raises:
            ImageError: the source is not a picture that may be decoded.
            OutOfMemory: this machine has no room for it now.
        """
        if isinstance(source, Image):
            return source
        try:
            return cls._open(source, limits or ImageLimits())
        except MemoryError as error:
            raise _out_of_memory() from error

    @classmethod
    def _open(cls, source: ImageSource, limits: ImageLimits) -> "Image":
        if isinstance(source, str) and source.startswith("data:"):
            return cls._decode(_data_url_bytes(source, limits), limits)
        if isinstance(source, bytes | bytearray | memoryview):
            return cls._decode(bytes(source), limits)
        if isinstance(source, str | PathLike):
            return cls._decode(_file_bytes(Path(source), limits), limits)
        return cls._from_object(source, limits)

    @classmethod
    def _decode(cls, content: bytes, limits: ImageLimits) -> "Image":
        import PIL.Image

        if len(content) > limits.max_bytes:
            raise ImageError(f"image file is over {limits.max_bytes} bytes", code="image_too_large")
        if content.startswith(jpeg.BEGIN):
            jpeg.check(content, limits.max_scans)
        try:
            picture = PIL.Image.open(io.BytesIO(content), formats=FORMATS)
        except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
            raise ImageError(
                f"image is over {limits.max_pixels} pixels", code="image_too_large"
            ) from error
        except Exception as error:
            raise _meant(error, f"image is not a readable {_listed(FORMATS)} file") from error
        _check_size(picture.size, limits)
        return cls._upright(picture)

    @classmethod
    def _from_object(cls, source: Any, limits: ImageLimits) -> "Image":
        import PIL.Image

        if isinstance(source, PIL.Image.Image):
            _check_size(source.size, limits)
            return cls._upright(source)
        shape: tuple[int, ...] = getattr(source, "shape", ())
        dtype = str(getattr(source, "dtype", ""))
        if len(shape) != 3 or shape[2] != 3 or dtype != "uint8":
            raise ImageError(
                "an image must be a path, bytes, a data: URL, a PIL image or a uint8 array "
                "[height, width, 3]"
            )
        _check_size((shape[1], shape[0]), limits)
        return cls._upright(PIL.Image.fromarray(source))

    @classmethod
    def _upright(cls, picture: "PIL.Image.Image") -> "Image":
        size = picture.size
        try:
            picture.load()
            turn = _turn(picture)
            upright = picture if turn is None else picture.transpose(turn)
            pixels = _to_rgb(upright)  # a copy, whose tags nobody must follow a second time
            pixels.info.clear()
            return cls(pixels, source_size=size, turned=turn is not None)
        except Exception as error:
            raise _meant(error, "image is broken: its pixels cannot be decoded") from error


def _meant(error: Exception, message: str) -> ImageError | OutOfMemory:
    """Return what an error of the decoder means; want of memory is no fault of the picture."""
    if isinstance(error, MemoryError) or str(error).startswith(NO_MEMORY):
        return _out_of_memory()
    return ImageError(message)


def _out_of_memory() -> OutOfMemory:
    return OutOfMemory("this image")


def _turn(picture: "PIL.Image.Image") -> "PIL.Image.Transpose | None":
    """Return what the orientation tag asks for; None where it is absent, wrong or unreadable."""
    from PIL.Image import Transpose

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
        return turns.get(picture.getexif().get(ORIENTATION_TAG, 1))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the pixels are good, whatever is wrong with the tags
        return None


def _to_rgb(picture: "PIL.Image.Image") -> "PIL.Image.Image":
    import PIL.Image

    if picture.mode.startswith("I;16") or picture.mode in ("I", "F"):
        # Pillow clips wide greys to 255 where people expect the whole range to be scaled.
        _, high = picture.getextrema()
        scale = 255.0 / 65535.0 if picture.mode.startswith("I") else 255.0 / max(float(high), 1e-9)  # type: ignore[arg-type]
        picture = picture.convert("F").point(lambda value: value * scale).convert("L")
        picture.info.pop("transparency", None)  # a 16-bit grey, which would hide others here
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        paper = PIL.Image.new("RGBA", layer.size, "white")
        picture = PIL.Image.alpha_composite(paper, layer)
    return picture.convert("RGB")


def _check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if width * height > limits.max_pixels:
        raise ImageError(
            f"image of {width}x{height} is over {limits.max_pixels} pixels",
            code="image_too_large",
        )
    if min(size) < limits.min_side_pixels:
        raise ImageError(
            f"image of {width}x{height} has a side under {limits.min_side_pixels} pixels",
            code="image_too_small",
        )
    if max(size) > limits.max_aspect_ratio * min(size):
        raise ImageError(
            f"image of {width}x{height} is more than {limits.max_aspect_ratio:g} times as long "
            "as it is wide"
        )


def _data_url_bytes(url: str, limits: ImageLimits) -> bytes:
    start = url.find(",") + 1
    if not url[:start].endswith(";base64,"):
        raise ImageError("a data: URL must read data:image/...;base64,...")
    if (len(url) - start) * 3 // 4 > limits.max_bytes + 2:
        raise ImageError(f"image file is over {limits.max_bytes} bytes", code="image_too_large")
    try:
        return _from_base64(url, start)
    except ValueError as error:  # binascii.Error is one
        raise ImageError("the data: URL's content is not valid base64") from error


def _from_base64(text: str, start: int) -> bytes:
    """Decode the end of a text in pieces: the decoder lets no other thread run meanwhile."""
    if 0 <= text.find("=", start) < len(text) - 2:
        raise ValueError("padding stands before the end")
    places = range(start, len(text), BASE64_PIECE_CHARS)
    pieces = (text[place : place + BASE64_PIECE_CHARS] for place in places)
    return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)


def _file_bytes(path: Path, limits: ImageLimits) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limits.max_bytes + 1)
    except OSError as error:
        raise ImageError(
            f"image {str(path)!r} cannot be read: {error.strerror}", hint="check the path"
        ) from error
    except ValueError as error:  # a zero byte in the path
        raise ImageError(f"image {str(path)!r} is not a path", hint="check the path") from error


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
