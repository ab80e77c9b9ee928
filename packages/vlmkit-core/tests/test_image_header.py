"""The header of an image file gives the size and orientation that its decoder returns."""

import base64
import io
import re
import struct
import zlib

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, strategies as st

from vlmkit.errors import ImageError
from vlmkit.image_files import pixels
from vlmkit.image_files.png import BEGIN as PNG_BEGIN, MAX_CHUNKS
from vlmkit.settings.images import ImageLimits
from vlmkit.types.image import Image

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
REFUSED = re.compile(
    "image (file is empty|is .*: it is not decoded"
    "|is an? .* whose header cannot be read: broken or cut off)"
)
WITH_TAGS = ("PNG", "JPEG", "WEBP")


def encoded(width, height, kind="PNG", tag=None):
    file = io.BytesIO()
    options = {}
    if tag is not None:
        exif = PIL.Image.Exif()
        exif[0x0112] = tag
        options["exif"] = exif
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    PIL.Image.fromarray(noise).save(file, kind, **options)
    return file.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_late_tag(content, num_between=0):
    """Return a PNG file whose orientation tag follows its pixels."""
    exif = PIL.Image.open(io.BytesIO(content)).info["exif"].removeprefix(b"Exif\0\0")
    tag = chunk(b"eXIf", exif)
    assert tag in content
    body, end = content.replace(tag, b""), chunk(b"IEND", b"")
    return body.removesuffix(end) + chunk(b"tEXt", b"a\0b") * num_between + tag + end


@pytest.fixture
def without_pixels(monkeypatch):
    def fail(*_):
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(pixels, "_upright", fail)
    for plugin in ("PngImagePlugin.PngImageFile", "JpegImagePlugin.JpegImageFile"):
        monkeypatch.setattr(f"PIL.{plugin}.load", fail)


def sizes(image):
    return image.source_size, (image.width, image.height), image.turned


@given(
    kind=st.sampled_from(KINDS),
    tag=st.one_of(st.none(), st.integers(0, 9)),
    width=st.integers(2, 40),
    height=st.integers(2, 40),
    is_late=st.booleans(),
)
def test_the_header_of_a_file_states_what_its_decoder_returns(kind, tag, width, height, is_late):
    content = encoded(width, height, kind, tag if kind in WITH_TAGS else None)
    if is_late and kind == "PNG" and tag is not None:
        content = with_late_tag(content)
    image = Image.open(content)
    assert sizes(Image.of_header(content)) == ((width, height), image.to_pil().size, image.turned)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("is_late", [False, True])
def test_reading_a_header_decodes_no_pixel(without_pixels, kind, is_late):
    content = encoded(30, 20, kind, 6)
    if is_late and kind == "PNG":
        content = with_late_tag(content)
    assert sizes(Image.of_header(content)) == ((30, 20), (20, 30), True)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP"])
def test_the_beginning_of_a_file_is_enough_to_read_its_header(kind):
    content = encoded(300, 200, kind, 6 if kind != "BMP" else None)
    image = Image.of_header(content[:2000])
    assert (image.width, image.height) == ((200, 300) if kind != "BMP" else (300, 200))
    with pytest.raises(ImageError):
        image.to_pil()


@given(content=st.binary(max_size=200), begin=st.sampled_from([b"", PNG_BEGIN, b"\xff\xd8\xff"]))
def test_a_file_that_is_no_image_is_refused_without_quoting_it(content, begin):
    with pytest.raises(ImageError) as caught:
        Image.of_header(begin + content)
    assert REFUSED.fullmatch(str(caught.value))


@given(data=st.data())
def test_a_truncated_or_changed_file_raises_only_image_errors(data):
    content = bytearray(encoded(9, 7, data.draw(st.sampled_from(KINDS))))
    for index in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[index] = data.draw(st.integers(0, 255))
    try:
        image = Image.of_header(bytes(content[: data.draw(st.integers(0, len(content)))]))
    except ImageError:
        return
    assert image.width * image.height <= ImageLimits().max_pixels


def test_a_data_url_is_read_like_a_file_within_the_same_limits():
    content = encoded(30, 20)
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    assert Image.of_header(url).width == 30
    for limits, code in (
        (ImageLimits(max_pixels=599), "image_too_large"),
        (ImageLimits(min_side_pixels=21), "image_too_small"),
        (ImageLimits(max_bytes=len(content) - 1), "image_too_large"),
    ):
        for source in (content, url):
            with pytest.raises(ImageError) as caught:
                Image.of_header(source, limits)
            assert caught.value.code == code


def test_a_png_file_with_too_many_chunks_is_refused():
    content = with_late_tag(encoded(30, 20, "PNG", 6), MAX_CHUNKS)
    with pytest.raises(ImageError) as caught:
        Image.of_header(content)
    assert caught.value.code == "image_too_complex"
