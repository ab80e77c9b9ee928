"""Images are checked at creation, decoded on demand in a worker, and can be pickled."""

import asyncio
import base64
import gc
import io
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import PIL.Image
import pytest
from hypothesis import assume, given, settings, strategies as st

import vlmkit.types.image
from mock_model import picture, script, wait_until
from vlmkit.errors import EngineError, ImageError
from vlmkit.image_files.file_type import is_image
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder

TURNED = PIL.Image.Exif()
TURNED[0x0112] = 6


def saved(width=8, height=6, kind="PNG", color="red", **options):
    content = io.BytesIO()
    picture(width, height, color).save(content, kind, **options)
    return content.getvalue()


BROKEN = saved(64, 64, color="teal")[:-30]


def running(tokenizer=None, **settings):
    return Model(
        Pipeline(
            tokenizer=tokenizer or MockTokenizer(),
            engine=MockEngine(),
            media_encoder=MockVisionEncoder(),
            settings=PipelineSettings(**settings),
        )
    )


class RecordingDecoder:
    """Records the threads that decode, and the decoded pixels."""

    def __init__(self, monkeypatch):
        self.threads, self.seen = [], []
        self._decoded = vlmkit.types.image.decoded
        monkeypatch.setattr(vlmkit.types.image, "decoded", self.decoded)

    def decoded(self, content, peak_bytes):
        self.threads.append(threading.current_thread().name)
        pixels = self._decoded(content, peak_bytes)
        self.seen.append(weakref.ref(pixels.picture))
        return pixels

    @property
    def num_held(self):
        gc.collect()
        return sum(ref() is not None for ref in self.seen)


@pytest.fixture
def decoder(monkeypatch):
    return RecordingDecoder(monkeypatch)


# One image.


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_file_is_decoded_only_when_its_pixels_are_needed(decoder, kind):
    image = Image.open(saved(9, 7, kind))
    assert (image.source_size, repr(image)) == ((9, 7), "Image(9x7)")
    assert not decoder.threads
    assert (image.width, image.height, image.turned) == (9, 7, False)
    assert len(decoder.threads) == 1


def test_pixels_are_freed_with_their_last_holder_but_facts_stay(decoder):
    image = Image.open(saved(6, 2, exif=TURNED))
    held = image.to_pil()
    assert image.to_pil() is held
    assert (image.width, image.height, image.turned, len(image.digest)) == (2, 6, True, 32)
    assert len(decoder.threads) == 1
    del held
    assert decoder.num_held == 0
    assert (image.width, image.height, image.turned, len(image.digest)) == (2, 6, True, 32)
    assert len(decoder.threads) == 1
    assert image.to_pil().size == (2, 6)


def test_an_array_is_copied_immediately():
    pixels = np.zeros((6, 8, 3), np.uint8)
    image = Image.open(pixels)
    before = image.to_pil().tobytes()
    pixels[:] = 255
    gc.collect()
    assert image.to_pil().tobytes() == before


UNPICKLE = """
import pickle, sys
request = pickle.load(sys.stdin.buffer)
for part in request.messages[0].parts[:-1]:
    print(part.image.width, part.image.height, part.image.turned, part.image.digest.hex())
"""


def test_a_pickled_request_has_the_same_images(tmp_path):
    file = tmp_path / "a.jpg"
    file.write_bytes(saved(40, 30, "JPEG"))
    url = "data:image/png;base64," + base64.b64encode(saved(6, 2, exif=TURNED)).decode()
    sources = [file, url, saved(5, 4, "WEBP"), picture(9, 3), np.full((7, 5, 3), 9, np.uint8)]
    images = [Image.open(source) for source in sources]
    message = Message.of("user", "what?", images)
    sent = pickle.dumps(Request(messages=[message]))
    file.unlink()
    done = subprocess.run(
        [sys.executable, "-c", UNPICKLE], input=sent, capture_output=True, check=True
    )
    here = [f"{i.width} {i.height} {i.turned} {i.digest.hex()}" for i in images]
    assert done.stdout.decode().split("\n")[:-1] == here


def test_a_pickled_image_is_its_file_even_after_decoding():
    content = saved(400, 300, "JPEG")
    image = Image.open(content)
    held = image.to_pil()
    assert len(pickle.dumps(image)) < len(content) + 200
    assert held.size == (400, 300)


# The images of a request.


class IgnoresImages(MockTokenizer):
    """Ignores images."""

    def prompt(self, messages, *, tools=None, options=PLAIN):
        return Prompt((40, 41))


@pytest.mark.parametrize("tokenizer", [MockTokenizer, IgnoresImages])
def test_an_undecodable_image_is_refused_although_the_tokenizer_ignores_images(tokenizer):
    shown = [saved(), BROKEN, saved(), BROKEN]

    async def ask(model):
        await model.agenerate("what?", images=shown)

    with running(tokenizer()) as model:
        for call in (
            lambda: model.generate("what?", images=shown),
            lambda: model.embed(["what?"], images=[shown]),
            lambda: model.score("what?", ["a"], images=shown),
            lambda: asyncio.run(ask(model)),
        ):
            with pytest.raises(ImageError, match="its pixels cannot be decoded") as caught:
                call()
            assert caught.value.index == 1
        assert model.generate("what?", images=[saved()]).choices
        assert model.stats().num_waiting == 0


@pytest.fixture(scope="module")
def model():
    with running() as made:
        yield made


def refusal(ask):
    """Return the message and code of an image error, or None."""
    try:
        ask()
    except ImageError as error:
        return str(error), error.code
    return None


@settings(max_examples=150)
@given(
    kind=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]),
    damage=st.lists(st.tuples(st.integers(8, 10**6), st.integers(0, 255)), max_size=3),
    num_lost=st.sampled_from([0, 0, 1, 30, 200]),
)
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_image_has_the_same_error_late_and_at_once(model, kind, damage, num_lost):
    content = bytearray(saved(40, 30, kind))
    for position, value in damage:
        content[position % len(content)] = value
    content = bytes(content[: max(1, len(content) - num_lost)])
    assume(is_image(content))  # otherwise, media loaders refuse it with another message
    at_once = refusal(lambda: Image.open(content).to_pil())
    assert refusal(lambda: model.generate("what?", images=[content])) == at_once


def test_each_image_of_a_prompt_is_decoded_once_in_a_prompt_worker(decoder):
    image = Image.open(saved(9, 7))

    async def ask(model):
        return await model.agenerate("what?", images=[image, saved(5, 4), image])

    with running() as model:
        assert "image 3: 9x7" in asyncio.run(ask(model)).text
    assert len(decoder.threads) == 2
    assert {name.rpartition("-")[0] for name in decoder.threads} == {"vlmkit-prompt"}


def test_neither_pixels_nor_file_of_an_image_are_held_while_it_is_answered(decoder):
    content = saved(9, 7)
    with running() as model:
        num_holders = sys.getrefcount(content)
        request = model.request(script(text="x", tokens=4000, latency_s=0.01), images=[content])
        assert sys.getrefcount(content) > num_holders
        stream = model.submit(request)
        del request
        wait_until(lambda: model.stats().num_running == 1)
        assert (len(decoder.seen), decoder.num_held) == (1, 0)
        assert sys.getrefcount(content) == num_holders
        stream.abort()


def test_a_refused_request_holds_no_pixels(decoder):
    with running(num_workers=1) as model:
        with pytest.raises(ImageError) as caught:
            model.generate("what?", images=[saved(), BROKEN])
        assert (len(decoder.seen), decoder.num_held) == (1, 0)
        assert caught.value.index == 1


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_workers_that_share_images_do_not_deadlock(num_workers):
    shown = [saved(60 + n, 50) for n in range(6)]

    async def ask(model):
        calls = [model.agenerate(str(n), images=shown) for n in range(20)]
        return await asyncio.gather(*calls)

    with running(num_workers=num_workers) as model:
        assert len(asyncio.run(ask(model))) == 20


def test_a_request_with_images_for_a_closed_model_is_refused():
    model = running()
    request = model.request("what?", images=[saved(), saved(9, 7)])
    model.close()
    with pytest.raises(EngineError, match="is closed"):
        model.submit(request)
