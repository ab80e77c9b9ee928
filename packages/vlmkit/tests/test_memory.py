"""Want of memory is told as that, wherever a request meets it: the picture is not at fault."""

import io
import subprocess
import sys

import numpy as np
import PIL.Image
import PIL.ImageFile
import pytest
from mock_model import picture, script

from vlmkit.ask.image import Image
from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.model import Model
from vlmkit.pipeline import Pipeline
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder

NARROW = """
import resource, sys
from pathlib import Path
from vlmkit.errors import OutOfMemory
from vlmkit.ask.image import Image

small, large = (Path(name).read_bytes() for name in sys.argv[1:])
Image.open(small).to_pil()
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + 2**26
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    Image.open(large).to_pil()
except OutOfMemory as error:
    print(error, Image.open(small).to_pil().size)
"""


def want_memory(*_, **__):
    np.empty(2**60, np.uint8)


def saved(image, kind="JPEG"):
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much this process has")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF"])
def test_a_picture_that_finds_no_room_is_not_called_broken(kind, tmp_path):
    sizes = {"small": (8, 6), "large": (7000, 4000)}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(saved(PIL.Image.new("RGB", size), kind))
    done = subprocess.run(
        [sys.executable, "-c", NARROW, *sizes],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("there is not enough memory for this image (8, 6)")


def test_tags_that_find_no_room_do_not_leave_a_picture_as_it_lies(monkeypatch):
    content = saved(picture())
    monkeypatch.setattr(PIL.Image.Image, "getexif", want_memory)
    with pytest.raises(OutOfMemory):
        Image.open(content).to_pil()


def test_what_a_decoder_says_in_words_is_understood(monkeypatch):
    content = saved(picture())

    def fail(*_):
        raise PIL.ImageFile._get_oserror(-9, encoder=False)

    monkeypatch.setattr(PIL.ImageFile.ImageFile, "load", fail)
    with pytest.raises(OutOfMemory):
        Image.open(content).to_pil()


def test_a_broken_picture_is_still_called_broken():
    with pytest.raises(ImageError, match="broken"):
        Image.open(saved(picture(99, 99))[:-200]).to_pil()


class NarrowTokenizer(MockTokenizer):
    prompt = want_memory


class NarrowEncoder(MockVisionEncoder):
    encode = want_memory


class NarrowEngine(MockEngine):
    read = want_memory


@pytest.mark.parametrize(
    "parts",
    [
        {"tokenizer": NarrowTokenizer()},
        {"media_encoder": NarrowEncoder()},
        {"engine": NarrowEngine()},
    ],
)
def test_a_component_that_finds_no_room_fails_its_request_as_that(parts):
    whole = {
        "tokenizer": MockTokenizer(),
        "engine": MockEngine(),
        "media_encoder": MockVisionEncoder(),
    }
    with Model(Pipeline(**(whole | parts))) as model, pytest.raises(OutOfMemory) as caught:
        model.generate(script(text="x"), images=[picture()])
    assert caught.value.hint == "try again later"
    assert "Unable to allocate" not in str(caught.value)
