"""One thread, quiet libraries, and each family's checkpoint made once."""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
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


@pytest.fixture
def load(saved: Callable[[str], Path]) -> Callable[..., Any]:
    """Return a function that builds engine and encoder of a family on a tiny cache."""
    import zoo
    from vlmkit.checkpoint import Checkpoint
    from vlmkit.registry import BuildContext
    from vlmkit_torch import encoder, engine
    from vlmkit_torch.settings import EncoderSettings, EngineSettings

    def build(name: str, **settings: Any) -> Any:
        checkpoint, shared = Checkpoint(name, saved(name)), {}
        tiny = {"cache_tokens": 800, "block_tokens": 4, "max_chunk_tokens": 64, **settings}
        made = engine.build(BuildContext("", checkpoint, EngineSettings(**tiny), shared))
        if name in zoo.NAMES_TEXT:
            return made, None
        return made, encoder.build(BuildContext("", checkpoint, EncoderSettings(), shared))

    return build
