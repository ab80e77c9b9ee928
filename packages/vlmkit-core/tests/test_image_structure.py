"""Files that cost more memory or time than their size states are refused before decoding."""

import contextlib
import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, strategies as st

from vlmkit.errors import ImageError
from vlmkit.image_files import jpeg, structure, webp
from vlmkit.settings.images import ImageLimits
from vlmkit.types.image import Image

NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
SCANS = ImageLimits().max_scans


def saved(kind, **options):
    file = io.BytesIO()
    picture = PIL.Image.fromarray(NOISE)
    (picture.quantize(16) if kind == "GIF" else picture).save(file, kind, **options)
    return file.getvalue()


def chunk(kind, content=b""):
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))


def segment(kind, content):
    return bytes((0xFF, kind)) + struct.pack(">H", len(content) + 2) + content


def with_segments(*segments):
    content = saved("JPEG")
    return content[:2] + b"".join(segments) + content[2:]


def with_blocks(blocks):
    content = saved("GIF")
    start = content.index(b"\x2c", 13 + (3 << (content[10] & 7) + 1))
    return content[:start] + blocks + content[start:]


def with_chunks(chunks, before=b"IDAT"):
    content = saved("PNG")
    start = content.index(before) - 4
    return content[:start] + chunks + content[start:]


def bmp_of_runs(width, height, runs):
    begin = 14 + 40 + 1024
    head = b"BM" + struct.pack("<IHHI", begin + len(runs), 0, 0, begin)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return head + info + bytes(range(256)) * 4 + runs


TAGS = segment(0xE1, b"Exif\0\0" + b"MM\0\x2a\0\0\0\x08\0\0\0\0\0\0")
EXTENDED = segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + b"x" * 60_000)
PROFILE = segment(0xE2, b"ICC_PROFILE\0\1\1" + b"x" * 60_000)
EDITOR = b"Photoshop 3.0\0"
TWO_RUNS = b"\x40\1\0\0"

BOMBS = {
    "png chunks": lambda: with_chunks(chunk(b"teXt") * 1_500_000),
    "png pixels in nothing": lambda: with_chunks(chunk(b"IDAT") * 1_500_000),
    "png chunks at the end": lambda: with_chunks(chunk(b"teXt") * 1_500_000, b"IEND"),
    "jpeg fill bytes": lambda: with_segments(b"\xff" * (18 * 2**20)),
    "jpeg tags": lambda: with_segments(*[segment(0xE1, b"Exif\0\0" + bytes(1994))] * 16_000),
    "jpeg tables": lambda: with_segments(*[segment(0xDB, (b"\0" + b"\1" * 64) * 999)] * 400),
    "jpeg notes": lambda: with_segments(
        *[segment(0xED, EDITOR + b"8BIM\0\0\0\0\0\0\0\0" * 5000)] * 400
    ),
    "gif comment": lambda: with_blocks(b"\x21\xfe" + b"\1x" * 10_000_000 + b"\0"),
    "gif comments": lambda: with_blocks(b"\x21\xfe\1x\0" * 4_000_000),
    "gif extensions": lambda: with_blocks(b"\x21\x01\0" * 9_000_000),
    "gif rubbish": lambda: with_blocks(b"\0" * 25_000_000),
    "bmp runs": lambda: bmp_of_runs(2000, 2000, b"\1\0" * 15_000_000),
    "bmp rows that end": lambda: bmp_of_runs(6000, 6000, b"\0\0" * 6000 + b"\0\1"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_with_a_code_before_a_decoder_sees_it(monkeypatch, name):
    monkeypatch.setattr(PIL.Image, "open", lambda *_, **__: pytest.fail("Pillow was asked"))
    content = BOMBS[name]()
    for opened in (Image.open, Image.of_header):
        with pytest.raises(ImageError) as caught:
            opened(content)
        assert caught.value.code == "image_too_complex"
        assert caught.value.hint


ORDINARY = {
    "a camera's tags": lambda: with_segments(TAGS, *[EXTENDED] * 100, *[PROFILE] * 20),
    "several pictures in one file": lambda: saved(
        "MPO", save_all=True, append_images=[PIL.Image.fromarray(255 - NOISE)]
    ),
    "tags in several segments": lambda: with_segments(*[TAGS] * 20),
    "a motion photo": lambda: saved("JPEG") + b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 20_000,
    "an editor's notes": lambda: with_segments(
        *[segment(0xED, EDITOR + b"8BIM\4\4\0\0\0\0\0\0" * 100)] * 9
    ),
    "a large profile": lambda: saved("JPEG", icc_profile=b"x" * 2_000_000),
    "pixels in small chunks": lambda: png_in_chunks(1024),
    "animated gif": lambda: saved(
        "GIF",
        save_all=True,
        append_images=[PIL.Image.fromarray(255 - NOISE)] * 20,
        comment=b"x" * 9000,
    ),
    "gif with tags of an editor": lambda: with_blocks(
        b"\x21\xff\x0bXMP DataXMP" + (b"\x40" + b"x" * 64) * 2000 + b"\0"
    ),
    "webp": lambda: saved("WEBP", exif=b"Exif\0\0MM\0\x2a", xmp=b"x" * 100_000),
    "bmp": lambda: saved("BMP"),
    "bmp of runs": lambda: bmp_of_runs(64, 48, TWO_RUNS * 48 + b"\0\1"),
}


def png_in_chunks(num_bytes):
    """Return a PNG file with 4 million bytes of pixels, in chunks of ``num_bytes``."""
    noise = np.random.default_rng(1).integers(0, 256, (1000, 1000, 4), np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(noise[..., :3]).save(file, "PNG", compress_level=1)
    content = file.getvalue()
    start, pixels = content.index(b"IDAT") - 4, b""
    position = start
    while content[position + 4 : position + 8] == b"IDAT":
        length = int.from_bytes(content[position : position + 4], "big")
        pixels += content[position + 8 : position + 8 + length]
        position += 12 + length
    pieces = (pixels[i : i + num_bytes] for i in range(0, len(pixels), num_bytes))
    return (
        content[:start] + b"".join(chunk(b"IDAT", piece) for piece in pieces) + content[position:]
    )


@pytest.mark.parametrize("name", ORDINARY)
def test_files_of_cameras_and_editors_are_opened(name):
    image = Image.open(ORDINARY[name]())
    assert image.to_pil().size == image.source_size


def test_the_limit_of_scans_depends_on_the_image_size(monkeypatch):
    """An image of 20 million pixels may have 100 scans, a larger one fewer."""
    scan = b"\xff\xda\0\x08\1\1\0\0\0\0"

    def jpeg_with_scans(side, num_scans):
        frame = struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0"
        return jpeg.BEGIN + b"\xe0\0\2" + segment(0xC2, frame) + scan * num_scans + b"\xff\xd9"

    jpeg.check(jpeg_with_scans(4472, 100), SCANS)
    jpeg.check(jpeg_with_scans(7000, 40), SCANS)
    with pytest.raises(ImageError) as caught:
        jpeg.check(jpeg_with_scans(7000, 41), SCANS)
    assert caught.value.code == "image_too_complex"


@given(
    st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "WEBP"]),
    st.integers(0, 400),
    st.binary(max_size=60),
)
def test_a_truncated_or_damaged_file_raises_only_image_errors(kind, cut, noise):
    content = saved(kind)
    for damaged in (content[:cut], content[:cut] + noise, content[:cut] + noise + content[cut:]):
        webp.size(damaged)
        with contextlib.suppress(ImageError):
            structure.check(damaged, SCANS)


@given(st.integers(1, 16_383), st.integers(1, 3), st.sampled_from([{}, {"lossless": True}]))
def test_the_size_of_a_webp_file_equals_that_of_its_decoder(width, height, options):
    for size in ((width, height), (height, width)):
        for more in ({}, {"exif": b"Exif\0\0MM"}):
            file = io.BytesIO()
            PIL.Image.new("RGB", size).save(file, "WEBP", method=0, **options, **more)
            assert webp.size(file.getvalue()) == size


def test_a_large_webp_file_is_refused_before_its_decoder_allocates_memory(monkeypatch):
    monkeypatch.setattr(PIL.Image, "open", lambda *_, **__: pytest.fail("Pillow was asked"))
    canvas = (16_382).to_bytes(3, "little") * 2
    content = b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\x12\0\0\0" + canvas + bytes(40)
    with pytest.raises(ImageError) as caught:
        Image.open(content)
    assert caught.value.code == "image_too_large"


STARVED = """
import io, resource, sys
import PIL.Image
from vlmkit.types.image import Image
from vlmkit.errors import ImageError, OutOfMemory

kind, mode, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
file = io.BytesIO()
PIL.Image.new(mode, (4000, 4000)).save(file, kind, **options)
small = io.BytesIO()
PIL.Image.new(mode, (40, 40)).save(small, kind, **options)
Image.open(small.getvalue()).to_pil()
with open("/proc/self/statm") as statm:
    held = int(statm.read().split()[0]) * resource.getpagesize()
told = []
for mb in range(4, 244, 40):
    resource.setrlimit(resource.RLIMIT_AS, (held + mb * 2**20, resource.RLIM_INFINITY))
    try:
        Image.open(file.getvalue()).to_pil()
        told.append("opened")
    except OutOfMemory:
        told.append("no memory")
print(*sorted(set(told)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space is bounded on Linux")
@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("JPEG", "RGB", {"progressive": True}),
        ("PNG", "RGBA", {}),
        ("GIF", "P", {}),
        ("WEBP", "RGB", {"lossless": True, "method": 0}),
    ],
)
def test_lack_of_memory_is_not_reported_as_an_error_of_the_image(kind, mode, options):
    """With any amount of memory, no ImageError is raised, which would end this program."""
    done = subprocess.run(
        [sys.executable, "-c", STARVED, kind, mode, repr(options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split("\n")[0] in ("no memory opened", "no memory"), done.stderr
