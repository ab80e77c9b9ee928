"""Answers in random batches equal the answers of the same requests alone.

Requests of all kinds start, stop and pause at random, in a cache with room for two or three. Drafts
are right, wrong or too long, and some answers are constrained. The expected answers come from runs
of one request at a time, with enough room and no drafts. In the end the engine holds nothing.
"""

import gc
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import zoo
from parity import runner
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.runner import AnswerStream
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.model import Model
from vlmkit.plugins import loader
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.completion import Chunk, FinishReason
from vlmkit.types.constraint import JsonSchema, OneOf, Regex
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_guidance.compiler import GuidanceCompiler
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder

pytestmark = pytest.mark.torch

NUM_STEPS = [100, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(0)])]
NUM_KINDS = 40  # of requests
MOST_OPEN = 8  # requests at a time
MAX_SEQUENCE_TOKENS = 192
FORMS = (
    OneOf(("tell me more of it", "tell me less of it", "no")),
    Regex("(ab?c){2,9}"),
    JsonSchema.of({"type": "object", "properties": {"name": {"enum": ["some name", "none"]}}}),
)

Received = tuple[str, list[int], FinishReason | None]
Parts = tuple[Engine, MediaEncoder | None, Tokenizer]
Build = Callable[[int], Parts]
"""Returns the components of a model whose cache holds so many tokens."""


class Hesitant(MockEngine):
    """Has several likely tokens at each place, so that seeds, filters and penalties decide."""

    def _logits(self, wanted: Any) -> Any:
        return super()._logits(wanted) * 0.12


@pytest.fixture(
    params=[
        "mock",
        "torch",
        "torch-int8",
        pytest.param("torch-mllama", marks=pytest.mark.slow),
        "onnx",
    ]
)
def build(
    request: pytest.FixtureRequest,
    saved: Callable[[str], Path],
    exported: Callable[..., Path],
) -> Build:
    """Return a function that builds a model on each of the engines."""
    if request.param == "mock":
        return _mock
    pytest.importorskip("vlmkit_hf")
    if request.param != "onnx":
        name = "mllama" if request.param == "torch-mllama" else "llava"
        folder, more = saved(name), {}
        if request.param == "torch-int8":
            request.getfixturevalue("in_double")
            more = {"cache_dtype": "int8"}
        return lambda tokens: _loaded(runner.load_engine, name, folder, cache_tokens=tokens, **more)
    folder = exported("llava")
    return lambda tokens: _loaded(runner.load_onnx_engine, "llava", folder, cache_tokens=tokens)


def _mock(capacity_tokens: int) -> Parts:
    settings = MockEngineSettings(
        capacity_tokens=capacity_tokens, max_sequence_tokens=MAX_SEQUENCE_TOKENS
    )
    return Hesitant(settings), MockVisionEncoder(), MockTokenizer()


def _loaded(load: Callable[..., Any], name: str, folder: Path, **settings: Any) -> Parts:
    sizes = settings | {"max_sequence_tokens": MAX_SEQUENCE_TOKENS}
    engine, encoder, _ = load(name, folder, **sizes)
    context = BuildContext("", Checkpoint(name, folder))
    return engine, encoder, loader.load().tokenizers.build("hf", {}, context)


@contextmanager
def pipeline(parts: Parts, proposer: "Guesser | None" = None) -> Iterator[Pipeline]:
    engine, encoder, tokenizer = parts
    with Pipeline(
        tokenizer=tokenizer,
        engine=engine,
        media_encoder=encoder,
        scheduler=ContinuousScheduler(SchedulerSettings(max_step_tokens=48, max_waiting=10_000)),
        proposer=proposer,
        constraint=GuidanceCompiler,
        settings=PipelineSettings(max_unread_tokens=4, feature_cache_bytes=0),
    ) as model:
        yield model


def requests(chance: random.Random) -> list[Request]:
    """Return requests that differ in all that a request can ask for."""
    made = []
    for number in range(NUM_KINDS):
        shown = [zoo.picture(number % 3, 40 + number, 60)] * chance.choice([0, 0, 1])
        pictures = [Image.open(picture) for picture in shown]
        said = "tell me " * chance.randint(1, 4) + f"of {number % 7}"
        form = chance.choice([None, None, *FORMS])
        params = SamplingParams(
            n=chance.choice([1, 1, 1, 3]),
            max_tokens=chance.randint(1, 30),
            min_tokens=chance.choice([0, 1]),
            ignore_eos=form is None and chance.random() < 0.5,
            seed=chance.randint(0, 4),
            temperature=chance.choice([0.0, 0.5, 1.0, 1.5]),
            top_p=chance.choice([1.0, 0.8]),
            top_k=chance.choice([0, 5]),
            repetition_penalty=chance.choice([1.0, 1.2]),
            frequency_penalty=chance.choice([0.0, 0.5]),
            stop=chance.choice([(), ("e",), (" t", "zz")]),
            logprobs=chance.random() < 0.3,
        )
        message = Message.of("user", said, pictures)
        priority = chance.choice([0, 0, 1])
        made.append(Request(messages=[message], params=params, constraint=form, priority=priority))
    return made


class Guesser:
    """Guesses right, wrong, too much and past the end; by chance."""

    def __init__(self, chance: random.Random, answers: Seq[Seq[int]]) -> None:
        self._random = chance
        self._answers = answers
        self.known: set[Sequence] = set()
        self.num_accepted = 0

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        self.known.add(sequence)
        done = sequence.output_ids
        right = [answer for answer in self._answers if answer[: len(done)] == done]
        known = self._random.choice([*right, done])
        guesses = list(known[len(done) :])[: self._random.randint(0, 9)]
        wrong = [self._random.randint(-2, 400) for _ in range(self._random.choice([0, 0, 1, 3]))]
        ends = list(sequence.eos_ids)[: self._random.choice([0, 0, 0, 1])]
        return self._random.choice([guesses + wrong, guesses + ends + wrong, wrong + guesses * 2])

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        self.num_accepted += num_accepted

    def forget(self, sequence: Sequence) -> None:
        self.known.discard(sequence)


@dataclass
class Reader:
    """The reader of one request, and the deltas that it received so far."""

    kind: int
    stream: AnswerStream
    heard: list[Received] = field(init=False)

    def __post_init__(self) -> None:
        self.heard = [("", [], None)] * self.stream.num_choices
        self._chunks = iter(self.stream)

    def read(self, num_chunks: int) -> None:
        """Read some chunks, or all that still come."""
        for _ in range(num_chunks):
            if (chunk := next(self._chunks, None)) is None:
                return
            self._hear(chunk)

    def _hear(self, chunk: Chunk) -> None:
        text, token_ids, _ = self.heard[chunk.index]
        token_ids = token_ids + [sample.token_id for sample in chunk.samples]
        self.heard[chunk.index] = (text + chunk.text, token_ids, chunk.finish_reason)

    def check(self, expected: Seq[Received]) -> None:
        """Compare with the answer of the request alone, up to a cancellation."""
        for found, whole in zip(self.heard, expected, strict=True):
            if found[2] == "abort":
                assert whole[0].startswith(found[0])
                assert whole[1][: len(found[1])] == found[1]
            else:
                assert found == whole


def alone(model: Pipeline, asked: Seq[Request]) -> list[list[Received]]:
    """Return the answer of each request without any other."""
    answers = []
    for request in asked:
        choices = model.submit(request).result().choices
        answers.append([(c.text, c.token_ids, c.finish_reason) for c in choices])
    return answers


def is_in_form(request: Request, received: Received) -> bool:
    """Tell whether an answer that ended by itself keeps to the request's form."""
    text, _, reason = received
    if reason != "stop" or request.params is None or request.params.stop:
        return True
    match request.constraint:
        case OneOf(texts):
            return text in texts
        case Regex(pattern):
            return re.fullmatch(pattern, text) is not None
        case JsonSchema():
            return set(json.loads(text)) <= {"name"}
    return True


def crowd(
    model: Pipeline,
    asked: Seq[Request],
    expected: Seq[Seq[Received]],
    chance: random.Random,
    num_steps: int,
) -> None:
    """Start, read, delay and cancel requests at random for some steps; compare the answers."""
    readers: list[Reader] = []
    while not (is_late := is_enough(model, num_steps)) or readers:
        if not readers or (not is_late and len(readers) < MOST_OPEN and chance.random() < 0.7):
            kind = chance.randrange(len(asked))
            readers.append(Reader(kind, model.submit(asked[kind])))
            continue
        reader = chance.choice(readers)
        if chance.random() < 0.1:
            reader.stream.abort()
        is_whole = is_late or chance.random() < 0.3
        reader.read(10_000 if is_whole else chance.randint(1, 6))
        if all(reason is not None for _, _, reason in reader.heard):
            reader.check(expected[reader.kind])
            readers.remove(reader)


def is_enough(model: Pipeline, num_steps: int) -> bool:
    """Tell whether so many steps were made and, since threads meet by chance, enough happened."""
    counters = model.stats().counters
    has_happened = happened(counters, num_steps) or counters["num_steps"] >= 20 * num_steps
    return counters["num_steps"] >= num_steps and has_happened


def happened(counters: Mapping[str, int], num_steps: int) -> bool:
    """Tell whether sequences lost their room and readers left, as often as so many steps demand."""
    has_preempted = counters["num_preemptions"] > num_steps / 100
    return has_preempted and counters["num_aborted"] > num_steps / 1000


def takes_all_room(model: Pipeline) -> bool:
    """Tell whether an answer may fill the cache, which holds one of that length: it is empty."""
    usage = Model(model).generate("on and on", ignore_eos=True).usage
    return usage.prompt_tokens + usage.completion_tokens == model.facts.limits.max_sequence_tokens


def held() -> list[MediaFeatures]:
    """Return the features of media that anybody holds."""
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is MediaFeatures]


@pytest.mark.parametrize("num_steps", NUM_STEPS)
def test_answers_of_random_batches_equal_those_alone(build: Build, num_steps: int) -> None:
    others = held()  # a test that failed in this process may hold some
    chance = random.Random(num_steps)
    asked = requests(chance)
    with pipeline(build(4096)) as model:
        expected = alone(model, asked)
        assert all(
            is_in_form(r, received) for r, c in zip(asked, expected, strict=True) for received in c
        )
        answers = [token_ids for choices in expected for _, token_ids, _ in choices]
    guesser = Guesser(chance, answers)
    with pipeline(build(MAX_SEQUENCE_TOKENS), guesser) as model:
        crowd(model, asked, expected, chance, num_steps)
        counters = model.stats().counters
        assert (model.stats().num_running, model.stats().num_waiting) == (0, 0)
        assert takes_all_room(model)
    assert guesser.num_accepted > num_steps / 20
    assert happened(counters, num_steps)
    assert not guesser.known
    del model
    assert not [features for features in held() if not any(features is old for old in others)]
