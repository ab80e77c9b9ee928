"""JPEG files that cost more than their size states are refused before decoding."""

import io
import re
from itertools import pairwise

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, strategies as st

from vlmkit.errors import ImageError
from vlmkit.image_files import jpeg
from vlmkit.settings.images import ImageLimits
from vlmkit.types.image import Image

NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
SEGMENT = b"\xff\xe9\0\2"


def saved(picture=None, **options):
    content = io.BytesIO()
    (picture or PIL.Image.fromarray(NOISE)).save(content, "JPEG", **options)
    return content.getvalue()


def scans_of(content):
    """Split a file of Pillow into the part before its scans, each scan, and the end."""
    after = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
    position, starts = 2, []
    while content[position + 1] != 0xD9:
        length = int.from_bytes(content[position + 2 : position + 4], "big")
        is_scan = content[position + 1] == 0xDA
        starts += [position] * is_scan
        position += 2 + length
        if is_scan:
            position = after.search(content, position).start()
            starts.append(position)
    bounds = [0, *starts, len(content)]
    return [content[start:stop] for start, stop in pairwise(bounds)]


def with_scans(num_scans, between=b"", **options):
    """Return a progressive file of ``num_scans`` scans: the last is repeated after some bytes."""
    *pieces, scan, end = scans_of(saved(progressive=True, **options))
    present = sum(piece.startswith(b"\xff\xda") for piece in pieces)
    return b"".join(pieces) + (between + scan) * (num_scans - present) + end


def refusal(monkeypatch, content, limits=None):
    """Return why a file is refused; fail if Pillow opens it first."""
    monkeypatch.setattr(PIL.Image, "open", lambda *_, **__: pytest.fail("Pillow was asked"))
    with pytest.raises(ImageError) as caught:
        Image.open(content, limits)
    return str(caught.value)


def with_thumbnail():
    exif = PIL.Image.Exif()
    exif[0x010E] = saved(progressive=True).decode("latin-1")
    return {"exif": exif.tobytes()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"progressive": True},
        {"progressive": True, "optimize": True, "quality": 95, "subsampling": 0},
        {"progressive": True, "restart_marker_blocks": 1},
        {"progressive": True, "icc_profile": b"\xff\xda\0\x0c" * 100_000},
        {"progressive": True, "comment": b"\xff\xd9\xff\xda\xff"},
        with_thumbnail(),
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_ordinary_files_are_opened(options, mode):
    content = saved(PIL.Image.fromarray(NOISE).convert(mode), **options)
    assert Image.open(content, ImageLimits(max_scans=20)).height == 48


def test_the_limit_of_scans_is_exact(monkeypatch):
    limits = ImageLimits(max_scans=30)
    assert Image.open(with_scans(30), limits).width == 64
    assert refusal(monkeypatch, with_scans(31), limits) == "image is a JPEG file of over 30 scans"


def test_thousands_of_scans_are_refused_before_the_first_is_decoded(monkeypatch):
    assert "over 100 scans" in refusal(monkeypatch, with_scans(2500))


@pytest.mark.parametrize(
    "between",
    [
        b"\xff" * 9,
        b"\xff\0",
        b"\xff\xd3" * 9,
        b"\xff\x02\xff\xff",
        b"\xff\xe5\0\1",
        b"\xff\xfe\0\4\xff\xd9",
        b"rubbish",
        b"\0" * 9999,
    ],
)
@pytest.mark.parametrize("restart", [{}, {"restart_marker_blocks": 1}])
def test_bytes_between_scans_hide_no_scan(monkeypatch, between, restart):
    content = with_scans(31, between, **restart)
    assert "over 30 scans" in refusal(monkeypatch, content, ImageLimits(max_scans=30))


def test_scans_are_found_at_any_boundary_of_the_search(monkeypatch):
    whole = with_scans(31)
    for num_bytes in range(1, 40):
        monkeypatch.setattr(jpeg, "PIECE_BYTES", num_bytes)
        jpeg.check(whole, 31)
        with pytest.raises(ImageError):
            jpeg.check(whole, 30)


@pytest.mark.parametrize(
    ("rubbish", "most"),
    [(b"\xff", jpeg.MAX_IDLE_BYTES), (b"\0", jpeg.MAX_IDLE_BYTES), (SEGMENT, jpeg.MAX_SEGMENTS)],
)
def test_the_segments_that_pillow_reads_are_bounded(monkeypatch, rubbish, most):
    content = saved()
    head, rest = content[:20], content[20:]
    assert Image.open(head + rubbish * 999 + rest).width == 64
    message = refusal(monkeypatch, head + rubbish * (most + 1) + rest)
    assert message == "image is a JPEG file of more segments than a picture has"
    assert refusal(monkeypatch, head + rubbish * (most + 1)) == message


@given(st.integers(2, 4000), st.binary(max_size=40), st.binary(max_size=40))
def test_a_truncated_or_damaged_file_raises_only_image_errors(cut, noise, more):
    content = with_scans(20)
    for damaged in (content[:cut], content[:cut] + noise, content[:cut] + noise + content[cut:]):
        try:
            jpeg.check(damaged + more, 20)
        except ImageError:
            continue
