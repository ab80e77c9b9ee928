"""Fixtures of the server's tests; makes the helper modules beside this file importable."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from mock_loader import MockLoader
from running_server import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with default settings; tests leave it idle."""
    with running() as server:
        yield server


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> MockLoader:
    """A loader of mocks.

    A full garbage collection is skipped, since it is slow in a test process.
    """
    monkeypatch.setattr("vlmkit_server.fleet.load_thread._give_back", lambda: None)
    return MockLoader()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """A pool of threads for concurrent clients."""
    with ThreadPoolExecutor(8) as pool:
        yield pool
