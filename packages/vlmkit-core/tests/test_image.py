"""Images: upright, checked before decoding; errors do not quote the file."""

import base64
import contextlib
import hashlib
import io
import struct
import threading
import warnings
import zlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.errors import ImageError
from vlmkit.settings.images import ImageLimits
from vlmkit.types import base64_text
from vlmkit.types.image import Image


def encoded(pil_image, kind="PNG", **options):
    file = io.BytesIO()
    pil_image.save(file, kind, **options)
    return file.getvalue()


def pil_image(width=4, height=3, color="red"):
    return PIL.Image.new("RGB", (width, height), color)


def test_a_file_bytes_data_url_pil_image_and_array_give_the_same_image(tmp_path):
    original = pil_image()
    content = encoded(original)
    path = tmp_path / "a.png"
    path.write_bytes(content)
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    sources = [path, str(path), content, url, original, np.asarray(original)]
    assert len({Image.open(source).digest for source in sources}) == 1


def test_an_orientation_tag_rotates_the_image():
    sideways = PIL.Image.new("RGB", (6, 2), "white")
    sideways.putpixel((0, 0), (255, 0, 0))
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    image = Image.open(encoded(sideways, "PNG", exif=exif))
    assert (image.width, image.height, image.turned) == (2, 6, True)
    assert image.to_pil().getpixel((1, 0)) == (255, 0, 0)
    assert image.source_size == (6, 2)


@pytest.mark.parametrize("tag", range(1, 9))
def test_every_orientation_is_applied_as_pillow_applies_it(tag):
    original = PIL.Image.effect_noise((7, 4), 60).convert("RGB")
    exif = PIL.Image.Exif()
    exif[0x0112] = tag
    content = encoded(original, exif=exif)
    expected = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(content)))
    image = Image.open(content)
    assert image.to_pil().tobytes() == expected.tobytes()
    assert not image.to_pil().getexif()
    assert image.turned == (tag != 1)


def exif_of(kind, value):
    """Return EXIF data with one orientation tag of any type and value."""
    entry = struct.pack("<HHI", 0x0112, kind, 1) + value
    return b"Exif\0\0II*\0\x08\0\0\0\x01\0" + entry + bytes(4)


@pytest.mark.parametrize(
    "exif",
    [
        exif_of(3, b"\0\0\0\0"),
        exif_of(3, b"\x09\0\0\0"),
        exif_of(2, b"ab\0\0"),
        exif_of(7, b"\x06\0\0\0"),
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff",
        b"Exif\0\0garbage",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_an_invalid_orientation_is_ignored(exif):
    image = Image.open(encoded(pil_image(6, 2), "JPEG", exif=exif))
    assert (image.width, image.height, image.turned) == (6, 2, False)


def test_unreadable_tags_are_ignored(monkeypatch):
    def fail(self):
        raise SyntaxError("not a TIFF file")

    content = encoded(pil_image(6, 2), "JPEG")
    monkeypatch.setattr(PIL.Image.Image, "getexif", fail)
    assert Image.open(content).turned is False


def test_a_transparent_sixteen_bit_grey_changes_no_other_grey():
    values = np.array([[0, 32768], [256, 65535]], dtype=np.uint16)
    image = Image.open(encoded(PIL.Image.fromarray(values), transparency=32768))
    assert image.to_pil().getpixel((0, 0)) == (0, 0, 0)


def test_opening_images_does_not_change_the_warning_filters_of_the_process(monkeypatch):
    content, before = encoded(pil_image()), list(warnings.filters)
    really_open, is_inside, is_last = PIL.Image.open, threading.Event(), threading.Event()
    other = threading.Thread(target=Image.open, args=(content,))

    def slow_open(*arguments, **options):
        if threading.current_thread() is other:
            is_inside.set()
            assert is_last.wait(300)
        else:
            other.start()
            assert is_inside.wait(300)
        return really_open(*arguments, **options)

    monkeypatch.setattr(PIL.Image, "open", slow_open)
    Image.open(content)
    is_last.set()
    other.join()
    assert warnings.filters == before


def test_a_decompression_bomb_is_reported_as_too_large():
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        content += struct.pack(">I", len(data)) + kind + data + checksum
    with pytest.raises(ImageError, match="over 50000000 pixels") as caught:
        Image.open(content)
    assert caught.value.code == "image_too_large"


def test_equal_bytes_of_another_size_have_another_digest():
    wide, tall = pil_image(6, 2), pil_image(2, 6)
    assert wide.tobytes() == tall.tobytes()
    assert Image.open(wide).digest != Image.open(tall).digest


def test_transparent_pixels_are_blended_with_white():
    image = Image.open(encoded(PIL.Image.new("RGBA", (2, 2), (255, 0, 0, 0))))
    assert image.to_pil().getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bit_grey_keeps_its_range():
    values = np.array([[0, 32768], [65535, 65535]], dtype=np.uint16)
    image = Image.open(encoded(PIL.Image.fromarray(values)))
    greys = [image.to_pil().getpixel((x, y))[0] for y in (0, 1) for x in (0, 1)]
    assert greys[0] == 0
    assert 126 <= greys[1] <= 129
    assert greys[2:] == [255, 255]


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "RGB"])
def test_every_mode_becomes_rgb(mode):
    kind = "JPEG" if mode == "CMYK" else "PNG"
    image = Image.open(encoded(pil_image(8, 8).convert(mode), kind))
    assert image.to_pil().mode == "RGB"


def test_an_animation_gives_its_first_frame():
    frames = [pil_image(color="red"), pil_image(color="blue")]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    red, _, blue = Image.open(content).to_pil().getpixel((0, 0))
    assert red > 200 > blue


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "image file is empty"),
        (b"%PDF-1.7 nonsense", "image is a PDF document: it is not decoded"),
        ("data:image/png,xyz", "must read data:image/...;base64,..."),
        ("data:image/png;base64,@@@@", "not valid base64"),
        ("zero\0byte.png", "is not a path"),
        ("no-such-file.png", "cannot be read: No such file or directory"),
        (np.zeros((3, 3)), "uint8 array [height, width, 3]"),
        (7, "must be a path, bytes"),
    ],
)
def test_a_file_that_is_no_image_is_refused(source, message):
    with pytest.raises(ImageError) as caught:
        Image.open(source)
    assert message in str(caught.value)


def test_a_truncated_file_is_refused_without_the_text_of_the_decoder():
    content = encoded(PIL.Image.effect_noise((64, 64), 50).convert("RGB"))
    image = Image.open(content[: len(content) // 2])
    for want in ("to_pil", "width", "turned", "digest"):
        with pytest.raises(ImageError, match="image is broken: its pixels cannot be decoded"):
            getattr(image, want)()


def test_formats_outside_the_list_are_refused():
    with pytest.raises(ImageError, match="a JPEG 2000 image: it is not decoded"):
        Image.open(encoded(pil_image(), "JPEG2000"))


def test_size_is_checked_before_a_pixel_is_decoded(monkeypatch):
    content = encoded(pil_image(100, 100))
    monkeypatch.setattr(PIL.Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(ImageError, match="image of 100x100 is over 9999 pixels") as caught:
        Image.open(content, ImageLimits(max_pixels=9999))
    assert caught.value.code == "image_too_large"


@pytest.mark.parametrize(
    ("size", "limits", "message"),
    [
        ((1, 50), ImageLimits(), "a side under 2 pixels"),
        ((400, 2), ImageLimits(), "more than 100 times as long"),
        ((9, 9), ImageLimits(max_bytes=10), "over 10 bytes"),
    ],
)
def test_limits_are_enforced(size, limits, message):
    with pytest.raises(ImageError, match=message):
        Image.open(encoded(pil_image(*size)), limits)


def test_a_data_url_over_the_limit_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(base64, "b64decode", lambda *a, **k: pytest.fail("decoded"))
    with pytest.raises(ImageError, match="over 30 bytes"):
        Image.open("data:image/png;base64," + "A" * 1000, ImageLimits(max_bytes=30))


@settings(max_examples=200)
@given(
    st.binary(max_size=300),
    st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"BM", b"RIFF"]),
)
def test_random_bytes_are_opened_or_refused_with_an_image_error(noise, magic):
    with contextlib.suppress(ImageError):
        Image.open(magic + noise).to_pil()


BASE64 = st.binary(max_size=60).map(lambda content: base64.b64encode(content).decode())


@given(BASE64 | st.text(alphabet="AB09+/-_=é@\n ", max_size=24))
def test_base64_in_pieces_is_read_like_the_whole_text(text):
    def read(decode):
        try:
            return decode()
        except ValueError:
            return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base64_text, "PIECE_CHARS", 8)
        pieces = read(lambda: base64_text.from_base64(f"data:,{text}", len("data:,")))
    plain = "".join(text.split()).replace("-", "+").replace("_", "/")
    plain += "=" * (-len(plain) % 4)
    assert pieces == read(lambda: base64.b64decode(plain, validate=True))


def test_the_digest_covers_every_pixel_of_tall_images():
    noise = PIL.Image.effect_noise((9, 700), 50).convert("RGB")
    expected = hashlib.sha256(b"RGB 9x700\0" + noise.tobytes()).digest()
    assert Image.open(noise).digest == expected
