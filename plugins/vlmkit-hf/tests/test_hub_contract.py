"""The contract of model sources, for the hub and its cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vlmkit_hf import plugin
from vlmkit_testing import ModelContract

FETCH = """
from vlmkit_hf.hub import fetching
for revision in (None, "main", "old"):
    fetching.fetch("team/tiny", revision)
"""


class TestHub(ModelContract):
    plugin = plugin
    name = "huggingface"

    @pytest.fixture(autouse=True)
    def _cache(self, hub, tmp_path: Path, monkeypatch) -> None:
        files = {"model.safetensors": b"weights", "tokenizer.json": b"{}"}
        hub.add(
            "team/tiny",
            main={**files, "config.json": b'{"model_type": "tiny"}'},
            old={**files, "config.json": b'{"model_type": "older"}'},
        )
        environ = {**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url}
        subprocess.run([sys.executable, "-c", FETCH], env=environ, check=True)
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def revisions(self) -> tuple[str, ...]:
        return ("main", "old")
