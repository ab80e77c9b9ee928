"""A server process with the mock model, and a browser that shows its page."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from chromium import BROWSER, DRIVER, Page, started_browser
from page_server import PageServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """A server that needs no key."""
    with PageServer(tmp_path_factory.mktemp("webui")) as server:
        yield server


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """A server that needs a key."""
    with PageServer(tmp_path_factory.mktemp("keyed"), has_key=True) as server:
        yield server


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser for all tests of this process."""
    if BROWSER is None or DRIVER is None:
        pytest.skip("no Chromium with its driver here (Debian: chromium, chromium-driver)")
    with started_browser(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.fixture
def page(browser: Any, server: PageServer) -> Page:
    """The page of the server without keys."""
    return Page(browser, server)
