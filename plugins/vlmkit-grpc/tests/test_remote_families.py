"""Models whose images other processes encode answer as one process does: torch and ONNX."""

import random
from contextlib import ExitStack

import numpy as np
import PIL.Image
import pytest

import vlmkit
from mock_model import wait_until
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from workers import encoder, worker

pytestmark = pytest.mark.posix

SMALL = {"cache_tokens": 2400, "block_tokens": 4, "max_chunk_tokens": 64, "num_threads": 1}
FAMILIES = [
    "qwen3_vl",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("llava", "qwen2_vl", "mllama")),
]
NUM_REQUESTS = 8
REMOTE = {"use": "remote", "min_pixels": 0}


def sets(section, settings):
    """Return options of the command line for the settings of a section."""
    pairs = [("--set", f"{section}.{name}={value}") for name, value in settings.items()]
    return [word for pair in pairs for word in pair]


def questions(seed, *, most_images=2, sides=(40, 200)):
    """Return random questions about random images, some of which occur again."""
    chance = random.Random(seed)
    pixels = np.random.default_rng(list(seed.encode()))
    images = []
    for _ in range(4):
        height, width = chance.randint(*sides), chance.randint(*sides)
        blocks = pixels.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        images.append(PIL.Image.fromarray(blocks).resize((width, height)))
    return [
        [
            Message.of(
                "user",
                chance.choice(["What is it?", "Which colour?", "How many?"]),
                [
                    Image.open(each)
                    for each in chance.choices(images, k=chance.randint(1, most_images))
                ],
            )
        ]
        for _ in range(NUM_REQUESTS)
    ]


def answers(model, asked):
    """Return text and tokens of each answer, of requests that run together."""
    options = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    streams = [model.submit(model.request(messages, **options)) for messages in asked]
    results = [stream.result() for stream in streams]
    return [(each.text, each.choices[0].token_ids) for each in results]


def check(folder, engine, asked, later):
    """Compare one process with a gateway, two workers and an encoder, which is killed at last."""
    with vlmkit.load(folder, engine=engine) as alone:
        expected, expected_later = answers(alone, asked), answers(alone, later)
    with ExitStack() as running:
        started = running.enter_context
        process = started(
            encoder(
                *sets("engine", engine), *sets("media_encoder", {"num_threads": 1}), model=folder
            )
        )
        remote = REMOTE | {"addresses": f'["{process.address}"]'}
        given = [*sets("engine", engine), *sets("media_encoder", remote)]
        workers = [started(worker(*given, model=folder)) for _ in range(2)]
        addresses = ",".join(each.address for each in workers)
        model = started(vlmkit.load(f"grpc://{addresses}"))
        assert answers(model, asked) == expected
        wait_until(lambda: counted(model, "num_media_encoded_remotely") > 0)
        assert counted(model, "num_remote_fallbacks") == 0
        process.kill()
        assert answers(model, later) == expected_later
        wait_until(lambda: counted(model, "num_remote_fallbacks") > 0)
        wait_until(lambda: is_idle(model))


def counted(model, name):
    return model.stats().counters.get(name, 0)


def is_idle(model):
    stats = model.stats()
    return not stats.num_running + stats.num_waiting


@pytest.mark.torch
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gateway_two_workers_and_an_encoder_answer_as_one_process(family, saved):
    pytest.importorskip("torch")
    most = 1 if family == "mllama" else 2
    asked, later = (questions(f"{family} {each}", most_images=most) for each in "ab")
    check(str(saved(family)), SMALL | {"use": "torch"}, asked, later)


def test_the_demo_answers_the_same_with_images_encoded_elsewhere():
    pytest.importorskip("vlmkit_demo")
    engine = {"num_threads": 1, "use": "onnx"}
    asked, later = (questions(f"demo {each}", sides=(60, 300)) for each in "ab")
    check("demo", engine, asked, later)


@pytest.mark.torch
def test_features_of_half_precision_arrive_exactly(saved):
    torch = pytest.importorskip("torch")
    folder, half = str(saved("qwen3_vl")), {"dtype": "bfloat16", "num_threads": 1}
    asked = questions("half")
    engine = SMALL | {"use": "torch", "dtype": "bfloat16"}
    with vlmkit.load(
        folder, engine=engine, media_encoder={"use": "torch", "dtype": "bfloat16"}
    ) as alone:
        slots = [s for m in asked for s in alone.runner._tokenizer.prompt(m).media]
        expected = alone.runner._encoder.encode(slots[:1])
        with encoder(
            *sets("engine", engine), *sets("media_encoder", half), model=folder
        ) as process:
            given = REMOTE | {"addresses": [process.address], "local_settings": half}
            with vlmkit.load(folder, engine=engine, media_encoder=given) as model:
                (found,) = model.runner._encoder.encode(slots[:1])
                for array, wanted in zip(
                    [found.embeddings, *found.extra.values()],
                    [expected[0].embeddings, *expected[0].extra.values()],
                    strict=True,
                ):
                    assert wanted.dtype == torch.bfloat16
                    assert torch.equal(torch.from_numpy(array), wanted.float())
                assert isinstance(found.embeddings, np.ndarray)
