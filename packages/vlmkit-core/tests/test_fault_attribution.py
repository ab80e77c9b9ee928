"""Errors of a component name its kind, its provider and its distribution.

Each component is from a local plugin, and part of a real model.
"""

import logging
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import vlmkit
from mock_model import picture, script
from vlmkit.errors import EngineError, EngineFailed, MediaError
from vlmkit.running.faults.attribution import ComponentNames, faulty_component
from vlmkit.types.constraint import OneOf

HEAD = """
import vlmkit
from vlmkit.types.sampling import SamplingParams
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.interfaces.observer import Observer
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder

VLMKIT_API = (1, 0)

def fail(*args, **kwargs):
    raise KeyError("the words" + " of a library")
"""
GROUPS = ("observer", "media_loader")

Made = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path) -> Made:
    """Return a function that loads the mock with the component ``bad`` of a plugin."""

    @contextmanager
    def load(kind: str, source: str) -> Iterator[vlmkit.Model]:
        file = tmp_path / "faulty.py"
        hook = f"@vlmkit.hookimpl\ndef vlmkit_register_{kind}s(registry):\n"
        added = "    registry.add('bad', lambda context: Bad())\n"
        file.write_text(f"{HEAD}{textwrap.dedent(source)}\n{hook}{added}")
        sections: dict[str, Any] = {kind: {"use": "bad"}}
        if kind in GROUPS:
            sections = {f"{kind}s": {"use": ["bad"]}}
        with vlmkit.load("mock", plugins=[str(file)], **sections) as model:
            yield model

    return load


def bad_prompt(kind: str, tmp_path: Path) -> str:
    """Return the name of the component in messages."""
    return f"{kind.replace('_', ' ')} 'bad' from '{tmp_path / 'faulty.py'}'"


ASKED = {
    "a sampler that raises": (
        "sampler",
        """
        class Bad(ArraySampler):
            def prepare(self, rows):
                return fail() if rows[0].sequence.params.top_k == 7 else super().prepare(rows)
        """,
        "failed on this request",
    ),
    "a sampler whose pick raises": (
        "sampler",
        """
        class Bad(ArraySampler):
            def prepare(self, rows):
                is_asked = rows[0].sequence.params.top_k == 7
                return fail if is_asked else super().prepare(rows)
        """,
        "failed on this request",
    ),
    "a sampler that returns no tokens": (
        "sampler",
        """
        class Bad(ArraySampler):
            def prepare(self, rows):
                is_asked = rows[0].sequence.params.top_k == 7
                return (lambda logits: logits) if is_asked else super().prepare(rows)
        """,
        "returned something other than 1 token ids",
    ),
    "an engine that raises": (
        "engine",
        """
        class Bad(MockEngine):
            def forward(self, items):
                is_asked = items[0].sequence.params.top_k == 7
                return fail() if is_asked else super().forward(items)
        """,
        "failed on this request",
    ),
    "an engine that cannot read": (
        "engine",
        """
        class Bad(MockEngine):
            def read(self, prompt):
                return fail()
        """,
        "failed on this prompt",
    ),
    "a tokenizer that makes no prompt": (
        "tokenizer",
        """
        class Bad(MockTokenizer):
            def prompt(self, messages, *, tools=None, options=None):
                return fail()
        """,
        "failed on this prompt",
    ),
    "a tokenizer that makes no reader": (
        "tokenizer",
        """
        class Bad(MockTokenizer):
            def reader(self, prompt, *, shows_special=False):
                return fail()
        """,
        "failed on this prompt",
    ),
    "a reader that raises": (
        "tokenizer",
        """
        class Reader:
            num_reasoning_tokens = 0
            push = finish = fail

        class Bad(MockTokenizer):
            def reader(self, prompt, *, shows_special=False):
                return Reader()
        """,
        "failed on this answer",
    ),
    "an encoder that raises": (
        "media_encoder",
        """
        class Bad(MockVisionEncoder):
            def encode(self, slots):
                return fail()
        """,
        "failed on this image",
    ),
    "an encoder that returns too much": (
        "media_encoder",
        """
        class Bad(MockVisionEncoder):
            def encode(self, slots):
                return super().encode(slots) * 2
        """,
        "returned [",
    ),
    "a compiler that raises": (
        "constraint",
        """
        class Bad:
            def compile(self, constraint):
                return fail()
        """,
        "could not be compiled",
    ),
    "a matcher that raises": (
        "constraint",
        """
        class Matcher:
            may_end = False
            fill = accept = roll_back = forced = fail

        class Bad:
            def compile(self, constraint):
                return Matcher
        """,
        "failed on this request",
    ),
}


@pytest.mark.parametrize("case", ASKED)
def test_the_error_of_a_request_names_the_faulty_component(
    case: str, load: Made, tmp_path: Path
) -> None:
    kind, source, problem = ASKED[case]
    with load(kind, source) as model:
        options = {"constraint": OneOf(("a", "b"))} if kind == "constraint" else {}
        with pytest.raises(EngineError) as caught:
            model.generate(script(text="hi"), images=[picture()], top_k=7, **options)
        assert str(caught.value).startswith(f"{bad_prompt(kind, tmp_path)} {problem}")
        assert "words of a library" not in str(caught.value)


LOST = {
    "a scheduler that cannot plan": (
        "scheduler",
        """
        class Bad(ContinuousScheduler):
            def plan(self, cache):
                return fail()
        """,
    ),
    "a scheduler that takes nobody": (
        "scheduler",
        """
        class Bad(ContinuousScheduler):
            def add(self, sequence):
                fail()
        """,
    ),
    "an engine that fails while a scheduler plans": (
        "engine",
        """
        class Bad(MockEngine):
            def admit(self, sequence):
                return fail()
        """,
    ),
    "a sampler that fails whatever it is given": (
        "sampler",
        """
        class Bad(ArraySampler):
            def prepare(self, rows):
                return fail()
        """,
    ),
    "an encoder that panics": (
        "media_encoder",
        """
        class Bad(MockVisionEncoder):
            def encode(self, slots):
                raise BaseException("panic")
        """,
    ),
}


@pytest.mark.parametrize("case", LOST)
def test_the_failure_of_a_model_names_the_faulty_component(
    case: str, load: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind, source = LOST[case]
    with load(kind, source) as model:
        with pytest.raises(EngineFailed) as caught:
            model.generate(script(text="hi"), images=[picture()])
        assert str(caught.value) == f"{bad_prompt(kind, tmp_path)} failed"
    assert f"no more requests are served; at fault is {bad_prompt(kind, tmp_path)}" in caplog.text


LOGGED = {
    "a proposer that raises": (
        "proposer",
        """
        class Bad:
            propose = note = forget = fail
        """,
        "failed; nothing is drafted any more",
    ),
    "an observer that raises": (
        "observer",
        """
        class Bad(Observer):
            def finished(self, facts, end, at_s):
                fail()
        """,
        "failed and is switched off",
    ),
}


@pytest.mark.parametrize("case", LOGGED)
def test_faults_that_do_not_change_an_answer_are_logged(
    case: str, load: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind, source, problem = LOGGED[case]
    with load(kind, source) as model:
        assert model.generate(script(text="hi")).text == "hi"
    assert f"{bad_prompt(kind, tmp_path)} {problem}" in caplog.text


@pytest.mark.parametrize(("method", "problem"), [("load", "failed:"), ("recognises", "failed at")])
def test_a_media_loader_that_raises_is_logged_and_the_client_gets_an_error_about_its_file(
    method: str, problem: str, load: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = f"""
        class Bad:
            def recognises(self, data):
                return True

            def load(self, data, bounds):
                return ()

            {method} = lambda *args: fail()
        """
    caplog.set_level(logging.ERROR)
    with load("media_loader", source) as model, pytest.raises(MediaError) as caught:
        model.generate("what?", media=[b"a file"])
    assert str(tmp_path) not in str(caught.value)
    assert f"{bad_prompt('media_loader', tmp_path)} {problem}" in caplog.text
    assert "words of a library" not in caplog.text


def test_components_without_a_name_are_named_by_their_kind() -> None:
    component_names = ComponentNames(
        {"engine": "engine 'x' from 'y'", "observer.log": "observer 'log' from 'z'"}
    )
    assert [component_names.of("engine"), component_names.of("media_encoder")] == [
        "engine 'x' from 'y'",
        "the media encoder",
    ]
    assert [component_names.of("observer", "log"), component_names.of("media_loader", "pdf")] == [
        "observer 'log' from 'z'",
        "media loader 'pdf'",
    ]


def test_an_error_without_a_component_in_its_traceback_is_attributed_to_none() -> None:
    assert faulty_component(KeyError(), {"engine": object(), "scheduler": None}) is None
