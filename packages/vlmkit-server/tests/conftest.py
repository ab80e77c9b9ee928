"""Fixtures of the server's tests; makes the helper modules beside this file importable."""

import os
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


IN_THIS_PROCESS = {
    "test_a_disconnect_during_image_decoding_keeps_the_request_from_the_engine": "its workers",
    "test_many_disconnects_at_any_moment_leave_nothing_behind": "its engine loop",
    "test_a_model_without_images_or_embeddings_is_listed_without_them": "the limits of its engine",
    "test_the_precision_of_each_component_is_listed": "its engine and its encoder",
    "test_out_of_memory_is_a_503_with_retry_after_and_without_library_text": "its tokenizer",
}
"""Tests that look into a pipeline or change it, and at what; a child process hides that."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests with ``TESTS_RUNNER=subprocess``, which serves mocks in child processes."""
    if os.environ.get("TESTS_RUNNER") == "subprocess":
        for item in items:
            if part := IN_THIS_PROCESS.get(item.name.partition("[")[0]):
                item.add_marker(pytest.mark.skip(reason=f"reaches into the pipeline: {part}"))
