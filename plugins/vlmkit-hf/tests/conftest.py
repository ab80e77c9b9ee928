"""Fixtures: tokenizers of the families in the zoo, and a local hub."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import zoo
from stub_hub import StubHub, stub_hub
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Return a function from a family to its checkpoint without weights."""

    @functools.cache
    def checkpoint(name: str) -> Checkpoint:
        return Checkpoint(name, zoo.save_processor(name, tmp_path_factory.mktemp(name)))

    return checkpoint


@pytest.fixture(scope="session")
def tokenizer_of(checkpoint_of: Callable[[str], Checkpoint]) -> Callable[[str], HfTokenizer]:
    """Return a function from a family to the tokenizer of its checkpoint."""

    @functools.cache
    def tokenizer(name: str) -> HfTokenizer:
        return HfTokenizer(checkpoint_of(name), HfTokenizerSettings())

    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any, str], HfTokenizer]:
    """Return a function that builds a tokenizer from a vocabulary and a chat template."""

    def tokenizer(vocabulary: Any, template: str) -> HfTokenizer:
        folder = tmp_path_factory.mktemp("m")
        vocabulary.save_pretrained(folder)
        (folder / "chat_template.jinja").write_text(template)
        (folder / "config.json").write_text('{"model_type": "llama"}')
        return HfTokenizer(Checkpoint("m", folder), HfTokenizerSettings())

    return tokenizer


@pytest.fixture
def hub() -> Iterator[StubHub]:
    """Serve an empty hub on a free loopback port."""
    with stub_hub() as made:
        yield made
