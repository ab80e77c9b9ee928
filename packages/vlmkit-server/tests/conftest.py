"""Makes the module beside this file importable, and runs one server for a module of tests."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from running_server import Running, running
from yard import Yard


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with default settings; tests leave it idle."""
    with running() as server:
        yield server


@pytest.fixture
def yard(monkeypatch: pytest.MonkeyPatch) -> Yard:
    """Mocks to be loaded and unloaded; a whole collection of garbage takes long beside tests."""
    monkeypatch.setattr("vlmkit_server.fleet.load_thread._give_back", lambda: None)
    return Yard()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Clients who ask side by side."""
    with ThreadPoolExecutor(8) as pool:
        yield pool
