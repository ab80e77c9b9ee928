"""Fixtures: GGUF files of tiny random models, and engines that read them."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NEEDED = ("torch", "transformers", "gguf", "xllamacpp")
if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
    collect_ignore_glob = ["test_*.py"]

ROW = 256  # of the blocks of K formats


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None:
    """See the workspace's conftest."""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def made(saved: Callable[[str], Path], made_once: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that gives a folder: ``model.gguf``, and the same in ``plain/FAMILY``."""
    from quantized_checkpoints import gguf_alone, gguf_families, gguf_folders

    def make(family: str, kind: str = "F16", **values: Any) -> Path:
        name = "-".join(map(str, ("llama.cpp", family, kind, *values.values())))
        fixed = gguf_alone.VALUES.get(family, {})
        wide = {"hidden_size": ROW, "intermediate_size": ROW} if kind.endswith("_K") else {}

        def fill(folder: Path) -> None:
            source = folder / f"source-{family}"
            source.mkdir()
            gguf_families.save(family, source, saved("llama"), **(fixed | wide | values))
            more = gguf_alone.fields_of(source, family)
            made = gguf_folders.make(source, folder, kind, more=more)
            (made.folder / gguf_folders.FILE).rename(folder / "model.gguf")

        return made_once(name, fill)

    return make


@pytest.fixture
def build(made: Callable[..., Path]) -> Callable[..., Any]:
    """Return a function that builds an engine on a tiny cache."""
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.registry import BuildContext
    from vlmkit_llama.build import build_engine
    from vlmkit_llama.settings import EngineSettings
    from vlmkit_quantized.gguf_alone import derived

    def make(family: str, kind: str = "F16", **settings: Any) -> Any:
        file = made(family, kind) / "model.gguf"
        checkpoint = derived(Checkpoint(family, file.parent, file=file))
        tiny = {
            "num_threads": 1,
            "cache_tokens": 768,
            "max_chunk_tokens": 96,
            "max_sequence_tokens": 200,
            "max_sequences": 12,
            "cache_dtype": "f32",
        }
        return build_engine(BuildContext("", checkpoint, EngineSettings(**(tiny | settings))))

    return make
