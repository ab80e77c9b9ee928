"""A picture that was checked, and is decoded when it is wanted.

Everything hostile about picture files ends here: size and scans are read from the file before a
pixel is decoded, only listed formats are opened, and no text of the decoder's errors leaves it.
Resizing and normalising for a model is the tokenizer's business; fetching by URL is that of
:mod:`vlmkit.kit.image_fetcher`.
"""

import hashlib
import weakref
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.image_files import isolated, structure, webp
from vlmkit.image_files.decode_cost import NO_COST, DecodeCost
from vlmkit.image_files.decoder_process import Calling
from vlmkit.image_files.file_type import EMPTY, file_type, is_image
from vlmkit.image_files.header import Beginning, Header, read_beginning, read_header, with_all_tags
from vlmkit.image_files.pixels import SUBJECT, Pixels, decoded, is_short_of_memory, strips, upright
from vlmkit.settings.images import ImageLimits
from vlmkit.types.base64_text import from_base64, is_data_url

if TYPE_CHECKING:
    import PIL.Image

ImageSource = Union["Image", str, PathLike[str], bytes, Any]  # Any: a PIL image or an array


class Image:
    """A picture that was checked, and whose pixels are decoded when they are first wanted.

    Make one with :meth:`open`. The object never changes, and can be pickled. It keeps the file that
    it came from, and what it learnt of the pixels: size and digest. Pixels themselves stay only as
    long as somebody holds what :meth:`to_pil` gave, and are decoded again after that.

    Args:
        source_size: width and height in pixels, before turning upright.
        content: the file; empty for a picture that was none.
        pixels: what such a picture was; they stay.
        cost: the memory that decoding takes; none for a picture that was no file.
        decoder: what decodes the file in a process of its own; see :meth:`of_decoder`.
    """

    def __init__(
        self,
        source_size: tuple[int, int],
        content: bytes = b"",
        pixels: Pixels | None = None,
        cost: DecodeCost = NO_COST,
        decoder: str = "",
    ) -> None:
        self.source_size = source_size
        self.cost = cost
        self._content = content
        self._pixels = pixels
        self._decoder = decoder
        self._size: tuple[int, int] | None = None
        self._is_turned: bool | None = None
        self._seen: weakref.ref[PIL.Image.Image] | None = None

    def __repr__(self) -> str:
        return f"Image({self.source_size[0]}x{self.source_size[1]})"

    def __reduce__(self) -> tuple[Any, ...]:
        made = (self.source_size, self._content, self._pixels, self.cost, self._decoder)
        return Image, made, {"_size": self._size, "_is_turned": self._is_turned}

    def __setstate__(self, known: dict[str, Any]) -> None:
        self.__dict__.update(known)

    @property
    def content(self) -> bytes:
        """The file; empty for a picture that was none."""
        return self._content

    @property
    def decoder(self) -> str:
        """What a plugin named to decode the file; empty where this package knows its format."""
        return self._decoder

    @property
    def width(self) -> int:
        """Width in pixels, after turning upright."""
        return (self._size or self.to_pil().size)[0]

    @property
    def height(self) -> int:
        """Height in pixels, after turning upright."""
        return (self._size or self.to_pil().size)[1]

    @property
    def turned(self) -> bool:
        """Whether an orientation tag turned it."""
        return self._decoded().turned if self._is_turned is None else self._is_turned

    @cached_property
    def digest(self) -> bytes:
        """Sha256 of the size and every pixel: equal pictures have equal digests."""
        picture = self.to_pil()
        width, height = picture.size
        digest = hashlib.sha256(f"RGB {width}x{height}\0".encode())
        for strip in strips(picture.size):
            digest.update(picture.crop(strip).tobytes())
        return digest.digest()

    def to_pil(self, calling: Calling | None = None) -> "PIL.Image.Image":
        """Return the picture as a PIL image in mode RGB; do not modify it.

        Args:
            calling: registers what ends a decoder early that runs in a process of its own, such as
                :meth:`vlmkit.interfaces.cancellation.Cancellation.calling`.

        Raises:
            ImageError: its pixels cannot be decoded.
            OutOfMemory: this machine has no room for them now.
        """
        seen = None if self._seen is None else self._seen()
        return self._decoded(calling).picture if seen is None else seen

    def _decoded(self, calling: Calling | None = None) -> Pixels:
        pixels = self._pixels or self._decode(calling)
        if not self._decoder:  # of others the header says more: they may be turned by decoding
            self._size, self._is_turned = pixels.picture.size, pixels.turned
        self._seen = weakref.ref(pixels.picture)
        return pixels

    def _decode(self, calling: Calling | None) -> Pixels:
        decoder = self._decoder or isolated.own_decoder(self._content)
        peak_bytes = self.cost.peak_bytes
        if not decoder:
            return decoded(self._content, peak_bytes)
        size = self._size or read_header(read_beginning(self._content)).size
        return isolated.decoded(decoder, self._content, size, peak_bytes, calling)

    @classmethod
    def open(cls, source: ImageSource, limits: ImageLimits | None = None) -> "Image":
        """Check a picture: what it is, and how large. A file is decoded later.

        Animations give their first frame, TIFF files the first page that is no thumbnail;
        transparency is laid on white; 16-bit, palette, grey and CMYK pictures become 8-bit RGB.

        Args:
            source: a path, the bytes of a file, a ``data:`` URL, a PIL image, a uint8 array
                ``[height, width, 3]``, or an Image, which is returned as it is.
            limits: what to refuse; the defaults of :class:`ImageLimits` when None.

        Raises:
            ImageError: the source is not a picture that may be decoded. What only the decoder finds
                is raised by whoever wants the pixels first: the model that is shown the picture.
            OutOfMemory: this machine has no room for it now.
        """
        if isinstance(source, Image):
            return source
        try:
            return cls._open(source, limits or ImageLimits())
        except MemoryError as error:
            raise OutOfMemory(SUBJECT) from error

    @classmethod
    def of_header(cls, source: str | bytes, limits: ImageLimits | None = None) -> "Image":
        """Check what a file says of a picture before its pixels: how large it is, upright.

        Args:
            source: a ``data:`` URL, or the beginning of a file.
            limits: what to refuse; the defaults of :class:`ImageLimits` when None.

        Returns:
            An image that knows its sizes; who wants its pixels gets an error.

        Raises:
            ImageError: the source is not a picture that may be decoded, or breaks off too early.
            OutOfMemory: this machine has no room for it now.
        """
        limits = limits or ImageLimits()
        try:
            content = data_url_bytes(source, limits) if isinstance(source, str) else source
            header = read_header(_opened(with_all_tags(content), limits))
        except MemoryError as error:
            raise OutOfMemory(SUBJECT) from error
        return cls._sized(header)

    @classmethod
    def of_decoder(
        cls,
        decoder: str,
        content: bytes,
        header: Header,
        cost: DecodeCost,
        limits: ImageLimits | None = None,
    ) -> "Image":
        """Return an image of a file whose format a plugin knows.

        Args:
            decoder: the module and name of a function, as ``module:name``, from a file's content to
                a Pillow image. It runs in a process of its own, with limits of memory and time,
                whenever pixels are wanted; an orientation that the image has as EXIF is applied.
            content: the file.
            header: its sizes; a picture of another size is refused.
            cost: the memory that decoding takes.
            limits: what to refuse; the defaults of :class:`ImageLimits` when None.

        Raises:
            ImageError: it is too large.
        """
        limits = limits or ImageLimits()
        if len(content) > limits.max_bytes:
            raise _too_large(limits)
        _check_size(header.source_size, limits)
        image = cls(header.source_size, content, cost=cost, decoder=decoder)
        image._size, image._is_turned = header.size, header.turned
        return image

    @classmethod
    def of_size(cls, size: tuple[int, int], limits: ImageLimits | None = None) -> "Image":
        """Return an image of which only width and height are known; bounds as :meth:`open`."""
        _check_size(size, limits or ImageLimits())
        return cls._sized(Header(size, size, turned=False))

    @classmethod
    def stand_in(cls, size: tuple[int, int]) -> "Image":
        """Return what stands for an upright picture that was looked at elsewhere."""
        return cls._sized(Header(size, size, turned=False))

    @classmethod
    def _sized(cls, header: Header) -> "Image":
        image = cls(header.source_size)
        image._size, image._is_turned = header.size, header.turned
        return image

    @classmethod
    def _open(cls, source: ImageSource, limits: ImageLimits) -> "Image":
        if isinstance(source, str) and is_data_url(source):
            return cls._of_file(data_url_bytes(source, limits), limits)
        if isinstance(source, bytes | bytearray | memoryview):
            return cls._of_file(bytes(source), limits)
        if isinstance(source, str | PathLike):
            return cls._of_file(_file_bytes(Path(source), limits), limits)
        return cls._of_object(source, limits)

    @classmethod
    def _of_file(cls, content: bytes, limits: ImageLimits) -> "Image":
        beginning = _opened(content, limits)
        image = cls(beginning.size, content, cost=beginning.cost)
        if isolated.own_decoder(content):
            header = read_header(beginning)
            image._size, image._is_turned = header.size, header.turned
        return image

    @classmethod
    def _of_object(cls, source: Any, limits: ImageLimits) -> "Image":
        import PIL.Image

        if isinstance(source, PIL.Image.Image):
            _check_size(source.size, limits)
            return cls(source.size, pixels=upright(source))
        shape: tuple[int, ...] = getattr(source, "shape", ())
        dtype = str(getattr(source, "dtype", ""))
        if len(shape) != 3 or shape[2] != 3 or dtype != "uint8":
            raise ImageError(
                "an image must be a path, bytes, a data: URL, a PIL image or a uint8 array "
                f"[height, width, 3], and was {_described(source, shape, dtype)}",
                hint="name a file, or convert it by PIL.Image.fromarray or numpy",
            )
        size = (shape[1], shape[0])
        _check_size(size, limits)
        return cls(size, pixels=upright(PIL.Image.fromarray(source)))


def _described(source: object, shape: tuple[int, ...], dtype: str) -> str:
    """Return what something is that is no image: its type, and of an array its shape, too."""
    kind = type(source).__name__
    return f"{kind} of {dtype} {list(shape)}" if shape else kind


def _opened(content: bytes, limits: ImageLimits) -> Beginning:
    """Return what stands before a file's pixels, with its size checked."""
    from PIL.Image import DecompressionBombError, DecompressionBombWarning

    if len(content) > limits.max_bytes:
        raise _too_large(limits)
    if not is_image(content):
        raise _not_decoded(content)
    coefficient_bytes = structure.check(content, limits.max_scans)
    stated = webp.size(content)
    if stated is not None:
        _check_size(stated, limits)
    try:
        beginning = read_beginning(content, coefficient_bytes)
    except (DecompressionBombError, DecompressionBombWarning) as error:
        raise ImageError(
            f"image is over {limits.max_pixels} pixels",
            code="image_too_large",
            hint="make it smaller",
        ) from error
    except ImageError:
        raise
    except Exception as error:
        if is_short_of_memory(error):
            raise OutOfMemory(SUBJECT) from error
        raise ImageError(
            f"image is {file_type(content).name} whose header cannot be read: broken or cut off",
            hint="save it again, as PNG or JPEG",
        ) from error
    _check_size(beginning.size, limits)
    return beginning


def _too_large(limits: ImageLimits) -> ImageError:
    return ImageError(
        f"image file is over {limits.max_bytes} bytes",
        code="image_too_large",
        hint="make it smaller, or save it as JPEG",
    )


def _not_decoded(content: bytes) -> ImageError:
    """Return the refusal of a file that is no image of a format that is decoded here."""
    found = file_type(content)
    what = "image file is empty" if found is EMPTY else f"image is {found.name}: it is not decoded"
    error = ImageError(what, hint=found.hint)
    error.distribution = found.distribution
    return error


def _check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if width * height > limits.max_pixels:
        raise ImageError(
            f"image of {width}x{height} is over {limits.max_pixels} pixels",
            code="image_too_large",
            hint="make it smaller",
        )
    if min(size) < limits.min_side_pixels:
        raise ImageError(
            f"image of {width}x{height} has a side under {limits.min_side_pixels} pixels",
            code="image_too_small",
            hint="make it larger",
        )
    if max(size) > limits.max_aspect_ratio * min(size):
        raise ImageError(
            f"image of {width}x{height} is more than {limits.max_aspect_ratio:g} times as long "
            "as it is wide",
            hint="cut it into several images",
        )


def data_url_bytes(url: str, limits: ImageLimits) -> bytes:
    """Return what a ``data:`` URL holds.

    Raises:
        ImageError: it is not base64, or too long.
    """
    start = url.find(",") + 1
    if not url[:start].lower().endswith(";base64,"):
        raise ImageError("a data: URL must read data:image/...;base64,...")
    if (len(url) - start) * 3 // 4 > limits.max_bytes + 2:
        raise _too_large(limits)
    try:
        return from_base64(url, start)
    except ValueError as error:  # binascii.Error is one
        raise ImageError("the data: URL's content is not valid base64") from error


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
