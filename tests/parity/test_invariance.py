"""Concurrent, cached and cancelled requests never change an answer or leave state behind."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import zoo

pytest.importorskip("vlmkit_hf")
import vlmkit
from vlmkit.interfaces.runner import AnswerStream

pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]
SAMPLING = {"temperature": 0.9, "top_p": 0.95, "frequency_penalty": 0.2}


def load(folder: Path, cache_tokens: int = 1200, cache_dtype: str = "auto") -> vlmkit.Model:
    return vlmkit.load(
        folder,
        engine={
            "use": "torch",
            "cache_tokens": cache_tokens,
            "cache_dtype": cache_dtype,
            "block_tokens": 4,
            "max_chunk_tokens": 64,
            "max_sequence_tokens": min(cache_tokens, 256),
        },
        scheduler={"max_step_tokens": 17},
    )


def ask(model: vlmkit.Model, number: int, takes_images: bool, **params: object) -> AnswerStream:
    """Start request ``number``, with its own text, images, length and seed."""
    pictures = [zoo.picture(number, 40 + 7 * number, 60)] * (number % 2) if takes_images else []
    request = model.request(
        "tell me more " * (1 + number % 4),
        images=pictures,
        max_tokens=12 + 4 * number,
        ignore_eos=True,
        seed=number,
        **params,
    )
    return model.submit(request)


@pytest.fixture
def in_precision(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that prepares a precision of the cache, and gives its name."""

    def prepare(cache_dtype: str) -> str:
        if cache_dtype != "auto":
            request.getfixturevalue("in_double")
        return cache_dtype

    return prepare


CACHES = [
    *((name, "auto") for name in ("llama", "qwen3_vl", "mllama")),
    *(pytest.param(name, "auto", marks=pytest.mark.slow) for name in ("llava", "gemma3")),
    pytest.param("llava", "int8", marks=pytest.mark.slow),
    ("gemma3", "int8"),
]


@pytest.mark.parametrize("params", [{}, SAMPLING], ids=["greedy", "seeded sampling"])
@pytest.mark.parametrize(("name", "cache_dtype"), CACHES)
def test_concurrent_requests_are_answered_as_one_at_a_time(
    name: str,
    cache_dtype: str,
    params: dict[str, float],
    saved: Saved,
    in_precision: Callable[[str], str],
) -> None:
    takes_images = name not in zoo.NAMES_TEXT
    precision = in_precision(cache_dtype)
    with load(saved(name), cache_dtype=precision) as model:
        alone = [
            ask(model, i, takes_images, **params).result().choices[0].token_ids for i in range(8)
        ]
    with load(saved(name), cache_dtype=precision) as model:
        streams = [ask(model, i, takes_images, **params) for i in range(8)]
        together = [stream.result().choices[0].token_ids for stream in streams]
    assert together == alone


@pytest.mark.parametrize(
    ("name", "cache_dtype"), [each for each in CACHES if each[0] != "qwen3_vl"]
)
def test_a_cache_too_small_for_all_requests_changes_no_answer(
    name: str, cache_dtype: str, saved: Saved, in_precision: Callable[[str], str]
) -> None:
    takes_images = name not in zoo.NAMES_TEXT
    precision = in_precision(cache_dtype)
    with load(saved(name), cache_dtype=precision) as model:
        roomy = [ask(model, i, takes_images, **SAMPLING) for i in range(8)]
        wanted = [stream.result().choices[0].token_ids for stream in roomy]
    with load(saved(name), cache_tokens=160, cache_dtype=precision) as model:
        tight = [ask(model, i, takes_images, **SAMPLING) for i in range(8)]
        assert [stream.result().choices[0].token_ids for stream in tight] == wanted
        assert model.stats().counters["num_preemptions"] > 0


@pytest.mark.parametrize("seed", range(6))
def test_requests_cancelled_at_any_point_leave_no_state_in_the_engine(
    seed: int, saved: Saved
) -> None:
    chance = random.Random(seed)
    with load(saved("llava"), cache_tokens=320) as model:
        engine = model.runner._engine
        running: list[AnswerStream] = []
        for number in range(24):
            running.append(ask(model, number % 8, takes_images=True))
            time.sleep(chance.choice([0.0, 0.0, 0.004]))
            if running and chance.random() < 0.6:
                running.pop(chance.randrange(len(running))).abort()
        for stream in running:
            assert stream.result().choices[0].finish_reason == "length"
        deadline = time.monotonic() + 300
        loop = model.runner._loop
        while loop.num_jobs and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (loop.num_jobs, loop.num_waiting, loop.num_running) == (0, 0, 0)
        assert engine._cache.pool.num_free_blocks == engine._cache.pool.num_blocks
        assert not engine._runner.states
        engine._cache.pool.check_integrity()
