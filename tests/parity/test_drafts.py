"""Engines that verify drafts give the answers that they give without, whatever the drafts are."""

import random
from collections.abc import Callable, Iterator, Sequence as Seq
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import zoo
from parity import runner
from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins import loader
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams

pytest.importorskip("vlmkit_hf")
pytestmark = pytest.mark.torch

Answers = list[list[list[int]]]
SAMPLING = [
    {},
    {"temperature": 0.8, "top_p": 0.9, "seed": 5},
    {"temperature": 1.3, "frequency_penalty": 0.4, "repetition_penalty": 1.1, "seed": 6, "n": 2},
]


class Guesser:
    """A proposer that knows the answers and corrupts them at random."""

    def __init__(self, answers: Seq[Seq[int]]) -> None:
        self.answers = answers
        self.random = random.Random(0)
        self.num_accepted = self.num_drafted = 0

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        done = sequence.output_ids
        known = next((a for a in self.answers if list(a[: len(done)]) == done), ())
        guesses = list(known[len(done) :][: self.random.randint(0, 6)])
        if self.random.random() < 0.4:
            guesses.insert(self.random.randint(0, len(guesses)), self.random.randint(0, 300))
        return guesses

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted

    def forget(self, sequence: Sequence) -> None:
        pass


@contextmanager
def pipeline(
    load: Callable[..., Any], name: str, folder: Path, proposer: Guesser | None, **settings: Any
) -> Iterator[Pipeline]:
    engine, encoder, _ = load(name, folder, **settings)
    context = BuildContext("", Checkpoint(name, folder))
    with Pipeline(
        tokenizer=loader.load().tokenizers.build("hf", {}, context),
        engine=engine,
        media_encoder=encoder,
        scheduler=ContinuousScheduler(SchedulerSettings(max_step_tokens=23)),
        proposer=proposer,
    ) as model:
        yield model


def requests(takes_images: bool) -> list[Request]:
    made = []
    for number, sampling in enumerate(SAMPLING * 2):
        pictures = [Image.open(zoo.picture(number, 40 + 7 * number, 60))] * (number % 2)
        text = "tell me more " * (1 + number % 3)
        message = Message.of("user", text, pictures if takes_images else [])
        params = SamplingParams(max_tokens=8 + 3 * number, ignore_eos=True, **sampling)  # type: ignore[arg-type]
        made.append(Request(messages=[message], params=params))
    return made


def answers(model: Pipeline, asked: Seq[Request]) -> Answers:
    streams = [model.submit(request) for request in asked]
    return [[c.token_ids for c in stream.result().choices] for stream in streams]


def check(load: Callable[..., Any], name: str, folder: Path, **tight: Any) -> None:
    asked = requests(name not in zoo.NAMES_TEXT)
    with pipeline(load, name, folder, None) as model:
        expected = answers(model, asked)
    guesser = Guesser([ids for choices in expected for ids in choices])
    with pipeline(load, name, folder, guesser, **tight) as model:
        assert answers(model, asked) == expected
        assert [answers(model, [request])[0] for request in asked] == expected
    assert guesser.num_accepted > 20
    assert guesser.num_drafted > guesser.num_accepted


@pytest.mark.parametrize("tight", [{}, {"cache_tokens": 160, "max_sequence_tokens": 160}])
@pytest.mark.parametrize("name", ["llama", "llava", "gemma3", "mllama"])
def test_torch_answers_with_drafts_equal_those_without(
    name: str, tight: dict[str, int], saved: Callable[[str], Path]
) -> None:
    check(runner.load_engine, name, saved(name), **tight)


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("tight", [{}, {"cache_tokens": 160, "max_sequence_tokens": 160}])
def test_answers_of_an_8_bit_cache_with_drafts_equal_those_without(
    tight: dict[str, int], saved: Callable[[str], Path]
) -> None:
    load = partial(runner.load_engine, cache_dtype="int8")
    check(load, "llava", saved("llava"), **tight)


@pytest.mark.parametrize("precision", ["fp32", "w8a8"])
def test_onnx_answers_with_drafts_equal_those_without(
    precision: str, exported: Callable[..., Path]
) -> None:
    check(runner.load_onnx_engine, "llama", exported("llama", precision))
