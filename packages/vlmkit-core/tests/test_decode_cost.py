"""The memory of decoding: stated for each format, equal to measurements, and freed afterwards."""

import gc
import importlib.util
import io
import struct
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageFile
import PIL.PngImagePlugin
import pytest

from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.image_files import header, jpeg, pixels, png, webp
from vlmkit.image_files.decode_cost import COSTS, FORMATS
from vlmkit.settings.images import ImageLimits
from vlmkit.types.image import Image

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
WIDTH, HEIGHT = 301, 199
NOISE = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
BROKEN_STREAM = "broken data stream when reading image file"


def benchmark():
    path = Path(__file__).parents[3] / "benchmarks" / "image_memory.py"
    spec = importlib.util.spec_from_file_location("image_memory", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


image_memory = benchmark()


def saved(kind, pil_image=None, **options):
    file = io.BytesIO()
    (pil_image or PIL.Image.fromarray(NOISE)).save(file, kind, **options)
    return file.getvalue()


def live_images(size=(WIDTH, HEIGHT)):
    """Return the Pillow images of a size that are still alive."""
    objects = [each for each in gc.get_objects() if issubclass(type(each), PIL.Image.Image)]
    return [each for each in objects if each.size == size]


def is_kind(kind, picture_format):
    return kind.split(",")[0].upper() == picture_format


def test_every_supported_format_has_a_stated_cost_and_a_measurement():
    assert tuple(COSTS) == FORMATS
    for name in FORMATS:
        assert any(is_kind(kind, name) for kind in image_memory.KINDS), name
    with pytest.raises(ImageError):
        Image.open(saved("TGA"))


@pytest.mark.parametrize("kind", image_memory.KINDS)
def test_the_estimated_cost_covers_the_pixels_that_pillow_returns(kind):
    """The estimate covers the pixels that Pillow returns and those that the image keeps."""
    content = image_memory.KINDS[kind](image_memory.drawn(WIDTH, HEIGHT))
    image = Image.open(content)
    assert image.cost.held_bytes == 4 * WIDTH * HEIGHT
    assert image.cost.held_bytes < image.cost.peak_bytes < 2**26 + 3 * len(content)
    expected = PIL.Image.open(io.BytesIO(content))
    tags = expected.getexif().get(0x0112, 1)
    if expected.mode == "RGB" and tags == 1 and "transparency" not in expected.info:
        assert image.to_pil().tobytes() == expected.tobytes()
    assert image.to_pil().mode == "RGB"


@only_linux
@pytest.mark.parametrize("kind", ["PNG, RGB", "JPEG, progressive, 4:4:4", "WebP, alpha"])
def test_stated_costs_equal_measured_ones(kind):
    check_cost(kind, (2500, 2000))


@only_linux
@pytest.mark.slow
@pytest.mark.parametrize("kind", image_memory.KINDS)
def test_every_stated_cost_is_measured(kind):
    check_cost(kind, image_memory.COSTS_SIZE)


def check_cost(kind, size):
    peak_bytes, stated_bytes = image_memory.measured(kind, size)
    spare = 4 * 2**20
    assert peak_bytes <= 1.03 * stated_bytes + spare
    assert stated_bytes <= 1.25 * peak_bytes + spare + 32 * 2**20 * ("profile" in kind)


@pytest.mark.parametrize(
    ("options", "ratio"),
    [
        ({}, 0),
        ({"progressive": True, "subsampling": 0}, 6),
        ({"progressive": True, "subsampling": 1}, 4),
        ({"progressive": True, "subsampling": 2}, 3),
    ],
)
def test_coefficients_are_counted_for_formats_whose_decoder_keeps_them(options, ratio):
    content = saved("JPEG", PIL.Image.new("RGB", (320, 320)), **options)
    assert jpeg.check(content, ImageLimits().max_scans) == ratio * 320 * 320


def test_a_baseline_jpeg_with_separate_scans_is_counted_as_progressive():
    """A decoder also keeps the coefficients of a baseline file whose components come one by one."""
    content = bytearray(saved("JPEG", PIL.Image.new("RGB", (64, 64)), subsampling=0))
    scan = content.index(b"\xff\xda")
    content[scan + 2 : scan + 14] = b"\0\x08\x01\x01\x00\x00\x3f\x00" + bytes(4)
    assert jpeg.check(bytes(content), ImageLimits().max_scans) == 6 * 64 * 64


def test_decoding_is_repeated_after_a_temporary_lack_of_memory(monkeypatch):
    """libjpeg reports a broken file when an allocation fails."""
    content, load = saved("JPEG"), PIL.ImageFile.ImageFile.load
    calls = []

    def failing_once(pil_image):
        calls.append(pil_image.size)
        if len(calls) == 1:
            raise OSError(BROKEN_STREAM)
        return load(pil_image)

    monkeypatch.setattr(PIL.ImageFile.ImageFile, "load", failing_once)
    assert Image.open(content).to_pil().size == (WIDTH, HEIGHT)
    assert len(calls) == 2


def test_a_file_is_reported_as_broken_only_if_memory_sufficed(monkeypatch):
    def fail(_):
        raise OSError(BROKEN_STREAM)

    monkeypatch.setattr(PIL.ImageFile.ImageFile, "load", fail)
    with pytest.raises(ImageError, match="broken"):
        Image.open(saved("JPEG")).to_pil()
    monkeypatch.setattr(pixels, "has_room", lambda num_bytes: num_bytes < 2**20)
    with pytest.raises(OutOfMemory):
        Image.open(saved("JPEG")).to_pil()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP"])
def test_an_error_does_not_hold_decoded_pixels(kind):
    """A server keeps errors for a while; errors in reference cycles wait for the collector."""
    content = saved(kind)
    image = Image.open(content[: len(content) * 3 // 4])
    gc.collect()
    before = len(live_images())
    gc.disable()
    try:
        with pytest.raises(ImageError) as caught:
            image.to_pil()
        assert caught.value.__cause__ is not None
        assert len(live_images()) == before
    finally:
        gc.enable()


def test_an_rgb_file_is_decoded_without_a_copy(monkeypatch):
    monkeypatch.setattr(PIL.Image.Image, "convert", lambda *_: pytest.fail("it was copied"))
    assert Image.open(saved("PNG")).to_pil().tobytes() == NOISE.tobytes()


def test_a_webp_header_is_read_without_its_decoder(monkeypatch):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    content = saved("WEBP", exif=exif, xmp=b"<x/>")
    monkeypatch.setattr("PIL._webp.WebPAnimDecoder", lambda *_: pytest.fail("decoder was made"))
    image = Image.of_header(content)
    assert (image.width, image.height, image.turned) == (HEIGHT, WIDTH, True)
    assert webp.tags(content)["xmp"] == b"<x/>"


def test_compressed_texts_and_profiles_of_png_files_are_not_inflated():
    """Pillow refuses a profile of 2 MB, and would keep every text."""
    png_info = PIL.PngImagePlugin.PngInfo()
    for number in range(70):
        png_info.add_text(f"note {number}", "x" * 2**20, zip=True)
    content = saved("PNG", pnginfo=png_info, icc_profile=bytes(2**21))
    with pytest.raises(ValueError, match=r"[Tt]oo (large|much)"):
        PIL.Image.open(io.BytesIO(content)).load()
    assert len(png.without_inflated(content)) < len(content)
    beginning = header.read_beginning(content)
    assert not {"note 1", "icc_profile"} & set(beginning.tags.info)
    assert Image.open(content).to_pil().tobytes() == NOISE.tobytes()


def test_an_orientation_in_a_compressed_text_is_applied():
    png_info = PIL.PngImagePlugin.PngInfo()
    png_info.add_itxt("XML:com.adobe.xmp", '<a tiff:Orientation="6"/>' + " " * 999, zip=True)
    png_info.add_itxt("other", "x" * 999, zip=True)
    image = Image.open(saved("PNG", pnginfo=png_info))
    assert image.to_pil().size == (HEIGHT, WIDTH)
    assert image.turned


def test_a_webp_file_with_too_many_chunks_is_refused():
    begin = saved("WEBP", exif=b"Exif\0\0MM\0\x2a")
    body = begin[12:] + b"junk\0\0\0\0" * webp.MAX_CHUNKS
    content = b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body
    with pytest.raises(ImageError) as caught:
        Image.open(content)
    assert caught.value.code == "image_too_complex"
