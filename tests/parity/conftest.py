"""One thread, quiet libraries, and each family's checkpoint and reference answers made once."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers

import zoo
from parity import runner


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tiny matrices lose more by sharing than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.enable_progress_bar()
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the checkpoint folder of a family."""

    @functools.cache
    def folder(name: str) -> Path:
        return zoo.save(name, tmp_path_factory.mktemp(name))

    return folder


@pytest.fixture(scope="session")
def answered(saved: Callable[[str], Path]) -> Callable[[str], list[runner.Answer]]:
    """Return a function that gives transformers' own answers to a family's requests."""

    @functools.cache
    def answers(name: str) -> list[runner.Answer]:
        return runner.expected(name, saved(name), runner.requests(name))

    return answers
