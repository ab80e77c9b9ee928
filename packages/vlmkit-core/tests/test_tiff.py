"""Pages of TIFF files are decoded as Pillow decodes them, and hostile directories are refused."""

import io
import struct

import msgspec
import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.errors import ImageError, MediaError
from vlmkit.image_files import tiff
from vlmkit.running.prompting.tiff_loader import TiffLoader
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.pages import Pages
from vlmkit_testing import MediaLoaderContract

NOISE = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))
COLOURS = ("red", "lime", "blue")
BOUNDS = PipelineSettings()


def saved(picture=NOISE, **options):
    file = io.BytesIO()
    picture.save(file, "TIFF", **options)
    return file.getvalue()


def save_pages(num=3, **options):
    pages = [PIL.Image.new("RGB", (30 + n, 20), COLOURS[n % 3]) for n in range(num)]
    return saved(pages[0], save_all=True, append_images=pages[1:], **options)


def with_entries(tags, order="<"):
    """Return a file without pixels and with one directory of (tag, type, count, value)."""
    packed = b"".join(struct.pack(order + "HHLL", *tag) for tag in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + packed + bytes(4)


def sized(width, height, *more):
    return with_entries([(256, 4, 1, width), (257, 4, 1, height), *more])


class TestTiffLoader(MediaLoaderContract):
    num_harmed = 24

    def make(self):
        return TiffLoader()

    def files(self):
        return [save_pages(2), saved(compression="tiff_lzw")]


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "RGB", "I;16", "I", "F"])
@pytest.mark.parametrize("is_big", [False, True])
def test_every_mode_decodes_as_in_a_png_file(mode, is_big):
    source = NOISE.convert("L") if mode in ("I;16", "LA") else NOISE
    picture = source.convert(mode)
    content = saved(picture, big_tiff=is_big, compression="tiff_lzw")
    found = Image.open(content).to_pil()
    assert found.mode == "RGB"
    if mode not in ("I", "F"):
        assert found.tobytes() == Image.open(picture).to_pil().tobytes()


@pytest.mark.parametrize(
    "kind", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "lzma", "zstd"]
)
def test_every_lossless_compression_gives_the_same_pixels(kind):
    assert Image.open(saved(compression=kind)).to_pil().tobytes() == NOISE.tobytes()


@pytest.mark.parametrize("tag", range(1, 9))
def test_an_orientation_rotates_a_page_once(tag):
    content = saved(tiffinfo={274: tag})
    image = Image.open(content)
    expected = PIL.Image.open(io.BytesIO(content))
    expected.load()  # Pillow turns TIFF files itself
    assert (image.width, image.height) == expected.size
    assert image.turned == (tag != 1)
    assert image.to_pil().tobytes() == expected.tobytes()


def test_every_page_is_an_image_and_pages_can_be_selected():
    loader = TiffLoader()
    parts = loader.load(save_pages(), BOUNDS)
    assert [(part.page, part.image.width) for part in parts] == [(1, 30), (2, 31), (3, 32)]
    assert parts[1].image.to_pil().getpixel((3, 3)) == (0, 255, 0)
    (part,) = loader.load_pages(save_pages(), Pages.of("3"), BOUNDS)
    assert (part.page, part.image.width) == (3, 32)
    (part,) = loader.load(saved(), BOUNDS)
    assert part.page == 1


def test_pages_are_bounded_like_those_of_documents():
    few = msgspec.structs.replace(BOUNDS, max_images=2)
    with pytest.raises(MediaError, match="3 pages are over the limit of 2 images"):
        TiffLoader().load(save_pages(), few)
    with pytest.raises(MediaError, match="a document of 3 pages does not have all"):
        TiffLoader().load_pages(save_pages(), Pages.of("4"), BOUNDS)


def test_thumbnails_are_no_pages_and_a_file_of_only_thumbnails_is_refused():
    content = saved(NOISE, save_all=True, append_images=[NOISE.resize((6, 4))], tiffinfo={254: 0})
    assert tiff.has_pages(content)
    reduced = saved(tiffinfo={254: 1})
    with pytest.raises(ImageError, match="thumbnails alone, as camera raw files are"):
        Image.open(reduced)


def test_a_cycle_of_pages_ends():
    content = bytearray(save_pages(1))
    (at,) = struct.unpack_from("<L", content, 4)
    (num,) = struct.unpack_from("<H", content, at)
    struct.pack_into("<L", content, at + 2 + 12 * num, at)
    assert len(tiff.pages(bytes(content))) == 1


@pytest.mark.parametrize(
    ("content", "message", "code"),
    [
        (sized(9, 9, (259, 3, 1, 6)), "old-style JPEG compression", "invalid_image"),
        (sized(9, 9, (259, 3, 1, 50001)), "WebP compression", "invalid_image"),
        (sized(9, 9, (259, 3, 1, 9999)), "an unusual compression", "invalid_image"),
        (sized(9, 9, (262, 3, 1, 32803)), "a camera raw file", "invalid_image"),
        (sized(60_000, 60_000, (273, 4, 1, 8)), "over 50000000 pixels", "image_too_large"),
        (
            sized(9, 9, (322, 4, 1, 60_000), (323, 4, 1, 60_000), (324, 4, 1, 8)),
            "tiles far larger than its picture",
            "image_too_complex",
        ),
        (sized(2, 200_000, (278, 4, 1, 1), (273, 4, 1, 8)), "65536 strips", "image_too_complex"),
        (sized(9, 9, (258, 3, 2**30, 8), (273, 4, 1, 8)), "values of a tag", "image_too_complex"),
        (with_entries([(1, 3, 1, 1)] * 600), "512 tags", "image_too_complex"),
        (sized(9, 9, (273, 4, 1, 8), (279, 4, 1, 2**31)), "is broken", "invalid_image"),
        (sized(9, 9), "is broken", "invalid_image"),
        (b"II*\0\xff\xff\xff\x7f", "cannot be read", "invalid_image"),
        (saved()[:-200], "is broken", "invalid_image"),
    ],
)
def test_expensive_or_unsupported_files_are_refused(content, message, code):
    with pytest.raises(ImageError, match=message) as caught:
        Image.open(content).to_pil()
    assert caught.value.code == code


def test_overlapping_strips_allocate_no_memory():
    """65,536 strips may refer to the same few bytes."""
    content = bytearray(saved(PIL.Image.new("L", (40, 40)), compression="raw", strip_size=40))
    page = tiff.first_page(bytes(content))
    assert len(page.file()) < 2 * len(content)


@settings(max_examples=60)
@given(data=st.data())
def test_a_changed_file_is_decoded_or_refused(data):
    content = bytearray(save_pages(2, compression="tiff_lzw"))
    for index in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=8)):
        content[index] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        parts = TiffLoader().load(content, BOUNDS)
    except MediaError:
        return
    assert all(part.image.width for part in parts)
