"""Makes the training scripts importable, as when one of them runs."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "training"))


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """Return the packaged checkpoint folder."""
    return ROOT / "src" / "vlmkit_demo" / "checkpoint"
