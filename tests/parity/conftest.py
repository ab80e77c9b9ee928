"""Runs all parity tests with one thread and quiet libraries."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("vlmkit_torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None:
    """See the workspace's conftest."""
