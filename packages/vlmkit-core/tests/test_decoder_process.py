"""Decoding in a separate process: its pixels, its limits, and how it ends."""

import io
import os
import threading
import time
from pathlib import Path

import PIL.Image
import pytest

from vlmkit.errors import ImageError, RequestCancelled
from vlmkit.image_files import isolated
from vlmkit.image_files.decode_cost import NO_COST, DecodeCost
from vlmkit.image_files.header import Header
from vlmkit.image_files.iso_image import MAX_BOXES, read_iso_header
from vlmkit.running.prompting.image_decoding import ImageDecoder
from vlmkit.running.scheduling.decode_memory import DecodeMemoryLimiter
from vlmkit.running.scheduling.fair_executor import FairExecutor
from vlmkit.types.image import Image

HERE = Path(__file__).stem


def avif(size=(64, 48), mode="RGB", **options):
    file = io.BytesIO()
    picture = PIL.Image.linear_gradient("L").resize(size).convert(mode)
    picture.save(file, "AVIF", speed=10, **options)
    return file.getvalue()


def with_rotation(content, angle=None, axis=None):
    """Return an AVIF file whose primary item has added rotation properties."""
    added = b"" if angle is None else b"\0\0\0\x09irot" + bytes([angle])
    added += b"" if axis is None else b"\0\0\0\x09imir" + bytes([axis])
    num = (angle is not None) + (axis is not None)
    at = content.index(b"ipco") - 4
    size = int.from_bytes(content[at : at + 4], "big")
    num_before, position = 0, at + 8
    while position < at + size:
        num_before += 1
        position += int.from_bytes(content[position : position + 4], "big")
    ipma = content.index(b"ipma")
    count = ipma + 14
    indexes = bytes(0x80 | (num_before + 1 + n) for n in range(num))
    own = content[count]
    grown = bytearray(content)
    grown[count] = own + num
    grown[count + 1 + own : count + 1 + own] = indexes
    grown[at + size : at + size] = added
    for name, more in ((b"ipco", len(added)), (b"ipma", num), (b"iprp", 0), (b"meta", 0)):
        start = bytes(grown).index(name) - 4
        old = int.from_bytes(grown[start : start + 4], "big")
        grown[start : start + 4] = (old + (more or len(added) + num)).to_bytes(4, "big")
    iloc = bytes(grown).index(b"iloc") + 4
    for at in range(iloc + 8, iloc + 40):
        offset = int.from_bytes(grown[at : at + 4], "big")
        if offset == content.index(b"mdat") + 4:
            grown[at : at + 4] = (offset + len(added) + num).to_bytes(4, "big")
            break
    return bytes(grown)


# Decoders that the process imports from this file by name.


def wide(content):
    return PIL.Image.new("RGB", (2000, 2000))


def endless(content):
    while True:
        time.sleep(1)


def crash(content):
    os._exit(7)


def greedy(content):
    return PIL.Image.frombytes("L", (2, 2), bytes(2**31)[:4])


def quiet(content):
    print("it must not be taken for pixels")
    os.write(1, b"nor this")
    return PIL.Image.new("RGB", (2, 2), "red")


@pytest.fixture
def importable_decoders(monkeypatch):
    """Make this file importable for the process."""
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    )


def avif_like(name):
    header = Header((2, 2), (2, 2), turned=False)
    return Image.of_decoder(f"{HERE}:{name}", b"file", header, DecodeCost(2**20, 16))


def test_pixels_equal_those_that_pillow_decodes():
    for mode in ("RGB", "L"):
        content = avif(mode=mode)
        expected = PIL.Image.open(io.BytesIO(content)).convert("RGB")
        assert Image.open(content).to_pil().tobytes() == expected.tobytes()


def test_transparent_pixels_are_blended_with_white():
    file = io.BytesIO()
    PIL.Image.new("RGBA", (16, 16), (255, 0, 0, 0)).save(file, "AVIF")
    assert Image.open(file.getvalue()).to_pil().getpixel((8, 8)) == (255, 255, 255)


def test_an_animation_gives_its_first_frame():
    file = io.BytesIO()
    frames = [PIL.Image.new("RGB", (32, 16), name) for name in ("red", "blue")]
    frames[0].save(file, "AVIF", save_all=True, append_images=frames[1:])
    image = Image.open(file.getvalue())
    red, _, blue = image.to_pil().getpixel((4, 4))
    assert image.to_pil().size == (32, 16)
    assert red > 200 > 50 > blue


@pytest.mark.parametrize(
    "turn", [(None, None), (1, None), (2, None), (3, None), (None, 0), (None, 1), (1, 0), (3, 1)]
)
def test_rotations_of_the_header_equal_those_of_the_decoder(turn):
    content = with_rotation(avif(), *turn)
    expected = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(content))).convert("RGB")
    image = Image.open(content)
    assert (image.width, image.height) == expected.size
    assert image.turned == (turn != (None, None))
    assert image.to_pil().tobytes() == expected.tobytes()


def test_a_size_is_checked_before_a_decoder_runs(monkeypatch):
    content = bytearray(avif())
    at = content.index(b"ispe") + 8
    content[at : at + 8] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(ImageError, match="over 50000000 pixels"):
        Image.open(bytes(content))


def test_a_payload_larger_than_stated_gets_no_more_memory(monkeypatch):
    """libavif decodes the size of the payload, and scales it to the size in the header."""
    monkeypatch.setattr(isolated, "SPARE_BYTES", -(2**24))
    content = bytearray(avif((4000, 3000)))
    assert Image.open(avif()).to_pil().size == (64, 48)
    at = content.index(b"ispe") + 8
    content[at : at + 8] = (64).to_bytes(4, "big") + (48).to_bytes(4, "big")
    with pytest.raises(ImageError, match="is broken"):
        Image.open(bytes(content)).to_pil()


def test_an_image_of_another_size_than_stated_is_refused(importable_decoders):
    with pytest.raises(ImageError, match="is broken"):
        avif_like("wide").to_pil()


def test_the_number_of_boxes_is_bounded():
    content = avif()
    at = content.index(b"meta") - 4
    many = content[:at] + b"\0\0\0\x08free" * MAX_BOXES + content[at:]
    with pytest.raises(ImageError, match=f"over {MAX_BOXES} boxes"):
        read_iso_header(many, "an AVIF file")


def test_output_of_a_decoder_is_not_read_as_pixels(importable_decoders):
    assert avif_like("quiet").to_pil().getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("name", ["crash", "nowhere", "greedy"])
def test_a_decoder_that_fails_only_fails_its_image(importable_decoders, name):
    with pytest.raises(ImageError, match="image is"):
        avif_like(name).to_pil()


def test_a_decoder_that_never_ends_is_killed(importable_decoders, monkeypatch):
    monkeypatch.setattr(isolated, "TIMEOUT_S", 1.0)
    with pytest.raises(ImageError, match="takes longer than 1 s to decode") as caught:
        avif_like("endless").to_pil()
    assert caught.value.code == "image_too_complex"


def test_a_cancelled_request_kills_its_decoder(importable_decoders):
    workers = FairExecutor(1, "test", 1)
    position = DecodeMemoryLimiter(2**30, 2**30).lease("", 2**20)
    threading.Timer(1.0, position.cancellation.cancel).start()
    try:
        with (
            pytest.raises(RequestCancelled),
            ImageDecoder(workers, 1, 2**30).decoded([avif_like("endless")], position),
        ):
            pytest.fail("it was decoded")
    finally:
        workers.shutdown()


def test_an_image_of_a_plugin_has_limits_and_is_decoded_on_demand():
    header = Header((9000, 9000), (9000, 9000), turned=False)
    with pytest.raises(ImageError, match="over 50000000 pixels"):
        Image.of_decoder("none:none", b"", header, NO_COST)
