"""Fixtures: one thread, quiet libraries, and a loader of families."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # for broken_backends

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None:
    """See the workspace's conftest."""


@pytest.fixture
def load(saved: Callable[[str], Path]) -> Callable[..., Any]:
    """Return a function that builds engine and encoder of a family on a tiny cache."""
    import zoo
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.registry import BuildContext
    from vlmkit_torch.engine import torch_engine
    from vlmkit_torch.settings import EncoderSettings, EngineSettings
    from vlmkit_torch.vision import encoder

    def build(name: str, **settings: Any) -> Any:
        checkpoint, shared = Checkpoint(name, saved(name)), {}
        tiny = {"cache_tokens": 800, "block_tokens": 4, "max_chunk_tokens": 64, **settings}
        made = torch_engine.build(BuildContext("", checkpoint, EngineSettings(**tiny), shared))
        if name in zoo.NAMES_TEXT:
            return made, None
        return made, encoder.build(BuildContext("", checkpoint, EncoderSettings(), shared))

    return build
