"""Images that are checked when they are opened, and decoded when their pixels are needed.

This module defends against hostile image files. It reads size and scans from the file before any
pixel is decoded, opens only listed formats, and never passes on the text of a decoder's error. It
does not resize or normalise for a model, which tokenizers do, nor fetch URLs, for which see
:mod:`vlmkit.kit.image_fetcher`.
"""

import hashlib
import weakref
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.image_files import isolated, structure, webp
from vlmkit.image_files.decode_cost import NO_COST, DecodeCost
from vlmkit.image_files.decoder_process import Calling
from vlmkit.image_files.file_type import EMPTY, file_type, is_image
from vlmkit.image_files.header import Beginning, Header, read_beginning, read_header, with_all_tags
from vlmkit.image_files.pixels import SUBJECT, Pixels, decoded, is_short_of_memory, strips, upright
from vlmkit.settings.images import ImageLimits
from vlmkit.types.base64_text import from_base64, is_data_url
from vlmkit.types.prepared_image import PreparedImage

if TYPE_CHECKING:
    import PIL.Image

ImageSource = Union["Image", str, PathLike[str], bytes, Any]  # Any: a PIL image or an array


class ImageState(NamedTuple):
    """The content of an image as plain values, for sending it to another process.

    Attributes:
        source_size: width and height in pixels, before turning upright.
        size: width and height after turning upright; None if not known yet.
        is_turned: whether an orientation tag rotates or mirrors it; None if not known yet.
        content: the file; empty for an image that did not come from a file.
        pixels: ``[height, width, 3]`` uint8 of an upright image without a file; None otherwise.
        cost: the memory that decoding takes, as in :class:`.DecodeCost`.
        decoder: the decoder function of a plugin; see :meth:`Image.of_decoder`.
    """

    source_size: tuple[int, int]
    size: tuple[int, int] | None
    is_turned: bool | None
    content: bytes
    pixels: bytes | bytearray | memoryview | None
    cost: tuple[int, int, int]
    decoder: str = ""


class Image:
    """A checked image, whose pixels are decoded when they are first needed.

    Create one with :meth:`open`. The object is immutable and can be pickled. It keeps its file, and
    the size and digest of its pixels once they are known. The pixels stay in memory only while a
    result of :meth:`to_pil` is referenced, and are decoded again later.

    Args:
        source_size: width and height in pixels, before turning upright.
        content: the file; empty for an image that did not come from a file.
        pixels: the pixels of an image without a file; they stay in memory.
        cost: the memory that decoding takes; none for an image without a file.
        decoder: the function that decodes the file in its own process; see :meth:`of_decoder`.

    Attributes:
        prepared: what a tokenizer made of it for an earlier prompt; such an image has no pixels,
            and needs none. None for all others.
    """

    prepared: PreparedImage | None = None

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
        args = (self.source_size, self._content, self._pixels, self.cost, self._decoder)
        return Image, args, {"_size": self._size, "_is_turned": self._is_turned}

    def __setstate__(self, known: dict[str, Any]) -> None:
        self.__dict__.update(known)

    @property
    def state(self) -> ImageState:
        """The content as plain values; copies the pixels of an image without a file."""
        pixels = None if self._pixels is None else self._pixels.picture.tobytes()
        size = self._size if self._pixels is None else self._pixels.picture.size
        turned = self._is_turned if self._pixels is None else self._pixels.turned
        return ImageState(
            self.source_size, size, turned, self._content, pixels, self.cost, self._decoder
        )

    @classmethod
    def of_state(cls, state: ImageState) -> "Image":
        """Return the image of plain values that another process has checked.

        Raises:
            ValueError: the pixels do not have the stated size.
        """
        pixels = None
        if state.pixels is not None:
            import PIL.Image

            picture = PIL.Image.frombytes("RGB", state.size or (0, 0), bytes(state.pixels))
            pixels = Pixels(picture, bool(state.is_turned))
        cost = DecodeCost(*state.cost)
        image = cls(state.source_size, state.content, pixels, cost, state.decoder)
        image._size, image._is_turned = state.size, state.is_turned
        return image

    @property
    def content(self) -> bytes:
        """The file; empty for an image that did not come from a file."""
        return self._content

    @property
    def decoder(self) -> str:
        """The decoder function of a plugin, as ``module:name``; empty for built-in formats."""
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
        """Whether an orientation tag rotates or mirrors the image."""
        return self._decoded().turned if self._is_turned is None else self._is_turned

    @cached_property
    def file_digest(self) -> bytes:
        """Sha256 of the file; empty for an image that did not come from a file."""
        return hashlib.sha256(self._content).digest() if self._content else b""

    @cached_property
    def digest(self) -> bytes:
        """Sha256 of the size and every pixel: equal images have equal digests."""
        picture = self.to_pil()
        width, height = picture.size
        digest = hashlib.sha256(f"RGB {width}x{height}\0".encode())
        for strip in strips(picture.size):
            digest.update(picture.crop(strip).tobytes())
        return digest.digest()

    def to_pil(self, calling: Calling | None = None) -> "PIL.Image.Image":
        """Return the upright image as a PIL image in mode RGB, which must not be modified.

        Args:
            calling: registers a callback that stops a decoder process early, such as
                :meth:`vlmkit.interfaces.cancellation.Cancellation.calling`.

        Raises:
            ImageError: the pixels cannot be decoded.
            OutOfMemory: this machine has too little free memory for them.
        """
        seen = None if self._seen is None else self._seen()
        return self._decoded(calling).picture if seen is None else seen

    def _decoded(self, calling: Calling | None = None) -> Pixels:
        pixels = self._pixels or self._decode(calling)
        if not self._decoder:  # otherwise only the header is right: decoding may turn the image
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
        """Open an image and check its format and size. A file is decoded later.

        Uses the first frame of an animation, and the first page of a TIFF file that is not a
        thumbnail. Transparent pixels are composited on white. 16-bit, palette, grey and CMYK images
        become 8-bit RGB. Errors that only the decoder can find are raised later, when the pixels
        are first needed.

        Args:
            source: a path, the bytes of a file, a ``data:`` URL, a PIL image, a uint8 array
                ``[height, width, 3]``, or an Image, which is returned unchanged.
            limits: limits of file and size; the defaults of :class:`ImageLimits` when None.

        Raises:
            ImageError: the source is not an image that may be decoded.
            OutOfMemory: this machine has too little free memory for it.
        """
        if isinstance(source, Image):
            return source
        try:
            return cls._open(source, limits or ImageLimits())
        except MemoryError as error:
            raise OutOfMemory(SUBJECT) from error

    @classmethod
    def of_header(cls, source: str | bytes, limits: ImageLimits | None = None) -> "Image":
        """Check the header of a file and return an image with its upright size, without pixels.

        Args:
            source: a ``data:`` URL, or the beginning of a file.
            limits: limits of file and size; the defaults of :class:`ImageLimits` when None.

        Returns:
            An image with known sizes; accessing its pixels raises an error.

        Raises:
            ImageError: the source is not an image that may be decoded, or is truncated before the
                size.
            OutOfMemory: this machine has too little free memory for it.
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
        """Return an image of a file whose format a plugin decodes.

        Args:
            decoder: the function that turns a file's content into a Pillow image, as
                ``module:name``. It runs in its own process with limits of memory and time, whenever
                pixels are needed. An EXIF orientation of its result is applied.
            content: the file.
            header: the sizes; a decoded image of another size is refused.
            cost: the memory that decoding takes.
            limits: limits of file and size; the defaults of :class:`ImageLimits` when None.

        Raises:
            ImageError: the file or image exceeds the limits.
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
        """Return an image without pixels, of a given size; applies limits as :meth:`open`."""
        _check_size(size, limits or ImageLimits())
        return cls._sized(Header(size, size, turned=False))

    @classmethod
    def stand_in(cls, size: tuple[int, int]) -> "Image":
        """Return a placeholder for an upright image that another process has checked."""
        return cls._sized(Header(size, size, turned=False))

    @classmethod
    def of_prepared(cls, prepared: PreparedImage) -> "Image":
        """Return an image of which an earlier prompt has all that a tokenizer needs."""
        image = cls.stand_in(prepared.size)
        image.prepared = prepared
        return image

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
    """Describe a value that is not an image: its type, and the dtype and shape of an array."""
    kind = type(source).__name__
    return f"{kind} of {dtype} {list(shape)}" if shape else kind


def _opened(content: bytes, limits: ImageLimits) -> Beginning:
    """Return the header data of a file, after checking its structure and size."""
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
    """Return the error for a file that is not an image of a supported format."""
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
    """Return the content of a ``data:`` URL.

    Raises:
        ImageError: the URL is not base64, or too long.
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
