"""Images that earlier requests prepared are not decoded again, and change no answer."""

import asyncio
import random
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from test_image_decoding import RecordingDecoder, running, saved

from mock_model import picture, wait_until
from vlmkit.assembly.load import assemble
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.config.renderer_plan import WorkerProcesses
from vlmkit.config.structs import Config, ModelEntry
from vlmkit.errors import ImageError, RequestError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.model import Model
from vlmkit.running.prompting.prepared_images import ENTRY_BYTES, PreparedImages
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_mock.tokenizer import MockTokenizer


@pytest.fixture
def decoder(monkeypatch):
    return RecordingDecoder(monkeypatch)


def counted(model):
    counters = model.stats().counters
    return counters["num_image_hits"], counters["num_image_misses"]


def request_of(model, *parts, **fields):
    fields = {"messages": [Message("user", (*parts, TextPart("what?")))]} | fields
    return replace(model.request("?"), **fields)


def ask(model, *parts, **fields):
    return model.runner.submit(request_of(model, *parts, **fields)).result().choices[0].text


def part(color="red", **options):
    return ImagePart(Image.open(saved(64, 48, color=color)), ImageOptions(**options))


def test_an_image_is_decoded_once_for_all_turns_and_conversations(decoder):
    with running() as model:
        first = ask(model, part())
        assert ask(model, part()) == first
        assert asyncio.run(model.agenerate("what?", images=[saved(64, 48)])).text == first
        assert len(decoder.threads) == 1
        assert counted(model) == (2, 1)


def test_another_image_in_a_later_turn_is_the_only_one_that_is_decoded(decoder):
    with running() as model, running(image_cache_bytes=0) as plain:
        shown = []
        for number, color in enumerate(["red", "green", "blue"]):
            shown.append(color)
            parts = [part(each) for each in shown]
            before = len(decoder.threads)
            text = ask(model, *parts)
            assert len(decoder.threads) == before + 1
            assert text == ask(plain, *parts), number


@pytest.mark.parametrize("changed", [{"tenant": "other"}, {"cache_salt": "other"}])
def test_nobody_learns_which_images_others_have_sent(decoder, changed):
    with running() as model:
        ask(model, part())
        ask(model, part(), **changed)
        assert len(decoder.threads) == 2
        assert counted(model) == (0, 2)


def test_an_image_in_another_size_is_another_image(decoder):
    with running() as model, running(image_cache_bytes=0) as plain:
        for options in ({}, {"max_tokens": 3}, {"wanted_tokens": 2}, {"detail": "low"}):
            text = ask(model, part(**options))
            assert text == ask(model, part(**options)) == ask(plain, part(**options))
        assert counted(model) == (4, 4)


def test_an_image_without_a_file_or_beside_a_file_is_prepared_again():
    with running() as model:
        for _ in range(2):
            ask(model, ImagePart(Image.open(picture(64, 48))))
        assert counted(model)[0] == 0
        ask(model, part())
        beside = FilePart(saved(32, 32, kind="TIFF"))
        with_file = ask(model, part(), beside)
        assert ask(model, part(), beside) == with_file
        assert counted(model)[0] == 0


def test_a_broken_image_is_refused_each_time_with_its_place():
    broken = ImagePart(Image.open(saved(64, 64, color="teal")[:-30]))
    with running() as model:
        ask(model, part())
        for _ in range(2):
            with pytest.raises(ImageError) as refused:
                ask(model, part(), broken)
            assert refused.value.index == 1


def test_known_images_need_no_memory_for_decoding_and_still_count_against_limits(decoder):
    with running(max_decoding_pixels=3 * 64 * 48, max_images=3) as model:
        ask(model, part("red"), part("blue"))
        with pytest.raises(RequestError, match="pixels together"):
            ask(model, part("red"), part("blue"), ImagePart(Image.open(saved(65, 48))))
        twice = part("red")
        ask(model, twice, twice, part("blue"))
        with pytest.raises(RequestError, match="limit of 3"):
            ask(model, twice, twice, twice, twice)
        limiter = model.runner._workers._decode_memory
        lease = limiter.lease("another tenant", 2**40)  # all of the memory
        wait_until(lease.granted.done)
        done = []
        asked = threading.Thread(target=lambda: done.append(ask(model, part("red"))))
        asked.start()
        asked.join(60)
        assert done
        lease.release()


def test_the_prepared_memory_of_a_prompt_is_freed_with_it_and_not_with_the_cache():
    with running() as model:
        limiter = model.runner._workers._decode_memory
        for _ in range(5):
            ask(model, part("red"), part("blue"))
        assert model.runner._images.num_bytes > 2 * ENTRY_BYTES
        wait_until(lambda: not limiter.prepared_bytes)


def test_the_cache_keeps_its_bound_and_drops_what_was_not_used_longest():
    images = PreparedImages(3 * ENTRY_BYTES + 3 * 1000)
    chance, model = random.Random(0), running()
    shown = [Image.open(saved(4, 4, color=(n, 0, 0))) for n in range(8)]
    recent = []
    for _ in range(200):
        image = chance.choice(shown)
        request = request_of(model, ImagePart(image))
        (found,) = images.known(request).messages[0].parts[:1]
        assert (found.image.prepared is not None) == (image in recent[-3:])
        slot = replace(slot_of(image), inputs={"pixels": np.zeros(1000, np.uint8)})
        prompt = replace(MockTokenizer().prompt(request.messages), media=(slot,))
        kept = images.keep(images.known(request), prompt, [image])
        assert kept.media[0].inputs["pixels"] is not slot.inputs["pixels"]
        recent = [each for each in recent if each is not image] + [image]
        assert images.num_bytes <= 3 * ENTRY_BYTES + 3 * 1000
    model.close()


def slot_of(image) -> MediaSlot:
    return MockTokenizer().prompt([Message.of("user", "?", [image])]).media[0]


def test_a_light_prompt_is_neither_kept_nor_made_of_kept_images():
    with running() as model:
        for options in (PromptOptions(light=True), PLAIN, PromptOptions(light=True)):
            found = asyncio.run(model.runner.atokenize(request_of(model, part(), options=options)))
            assert bool(found.media[0].digest) != options.light
        assert counted(model) == (0, 1)


class Bound(MockTokenizer):
    """Its slots hold for one prompt."""

    def prompt(self, messages, *, tools=None, options=PLAIN):
        made = super().prompt(messages, tools=tools, options=options)
        return replace(made, media=tuple(replace(slot, around=None) for slot in made.media))


def test_a_tokenizer_that_does_not_offer_its_slots_sees_every_image(decoder):
    with running(Bound()) as model:
        assert ask(model, part()) == ask(model, part())
        assert len(decoder.threads) == 2


@contextmanager
def with_a_renderer():
    """Yield the mock as a server with a renderer runs it."""
    config, plugins = Config(), load_plugins(Config().plugins)
    processes = WorkerProcesses(
        num_renderers=1,
        needs_renderers=True,
        renderer_memory_bytes=2**30,
        compiles_constraints=False,
    )
    with Model(assemble(ModelEntry(model="mock"), config, plugins, workers=processes)) as model:
        yield model


@pytest.mark.posix
def test_renderers_decode_only_unknown_images(decoder):
    with with_a_renderer() as model, running(image_cache_bytes=0) as plain:
        for colors in (["red"], ["red", "blue"], ["blue", "green", "red"], ["green"]):
            parts = [part(color) for color in colors]
            answered = ask(model, *parts)
            assert not decoder.threads  # in this process
            assert answered == ask(plain, *parts)
            decoder.threads.clear()
        assert counted(model) == (1 + 2 + 1, 1 + 1 + 1)
        broken = ImagePart(Image.open(saved(64, 64, color="teal")[:-30]))
        with pytest.raises(ImageError) as refused:
            ask(model, part("red"), part("yellow"), broken, part("blue"))
        assert refused.value.index == 2
        assert not decoder.threads
