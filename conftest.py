"""What tests of several distributions share: each family's checkpoint, export and answers, once.

Nothing heavy is imported before a test asks for it.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what a system cannot do."""
    if sys.platform == "win32" and item.get_closest_marker("posix"):
        pytest.skip("Windows has no such signals, terminals or links")


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Let torch use one thread and be quiet: tiny matrices lose more by sharing than they gain."""
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


@pytest.fixture(scope="session")
def exported(
    request: pytest.FixtureRequest,
    saved: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Path]]:
    """Return a function that gives the ONNX folder of a family, in float32 if not said."""
    from parity.exports import Exports, ahead

    exports = Exports(saved, tmp_path_factory.mktemp("onnx"), ahead(request.session.items))
    yield exports.folder
    exports.close()
