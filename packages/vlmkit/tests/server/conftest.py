"""Makes the module beside this file importable, and runs one server for a module of tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from running_server import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with default settings; tests leave it idle."""
    with running() as server:
        yield server
