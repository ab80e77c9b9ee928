"""One thread, quiet libraries, and each family's checkpoint and reference answers made once."""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("vlmkit_torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tiny matrices lose more by sharing than they gain."""
    import torch
    import transformers

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
    import zoo

    @functools.cache
    def folder(name: str) -> Path:
        return zoo.save(name, tmp_path_factory.mktemp(name))

    return folder


@pytest.fixture(scope="session")
def answered(saved: Callable[[str], Path]) -> Callable[[str], list[Any]]:
    """Return a function that gives transformers' own answers to a family's requests."""
    from parity import runner

    @functools.cache
    def answers(name: str) -> list[Any]:
        return runner.expected(name, saved(name), runner.requests(name))

    return answers
