"""The contract of model sources, for the hub and its cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vlmkit_hf import plugin
from vlmkit_testing import ModelContract

FETCH = """
import sys
from vlmkit_hf.hub import fetching
for revision in (None, *sys.argv[2:]):
    fetching.fetch(sys.argv[1], revision)
"""
FILES = {"model.safetensors": b"weights", "tokenizer.json": b"{}"}


class TestHub(ModelContract):
    plugin = plugin
    name = "huggingface"

    @pytest.fixture(autouse=True)
    def _cache(self, hub, tmp_path: Path, monkeypatch) -> None:
        self.hub = hub
        self.environ = {**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url}
        hub.add(
            "team/tiny",
            main={**FILES, "config.json": b'{"model_type": "tiny"}'},
            old={**FILES, "config.json": b'{"model_type": "older"}'},
        )
        self.fetch("team/tiny", "main", "old")
        from huggingface_hub import constants
        from huggingface_hub.utils import _cache_manager

        for module in (constants, _cache_manager):  # the second has a copy
            monkeypatch.setattr(module, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def fetch(self, name: str, *revisions: str) -> None:
        """Fetch a model in another process, as ``vlmkit fetch`` would."""
        command = [sys.executable, "-c", FETCH, name, *revisions]
        subprocess.run(command, env=self.environ, check=True)

    def added(self) -> str:
        self.hub.add("team/other", main={**FILES, "config.json": b'{"model_type": "other"}'})
        self.fetch("team/other")
        return "team/other"

    def revisions(self) -> tuple[str, ...]:
        return ("main", "old")
