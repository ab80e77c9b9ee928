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


@pytest.fixture(scope="session", autouse=True)
def _runner() -> Iterator[None]:
    """Serve models in child processes with ``TESTS_RUNNER=subprocess``, also of server processes.

    A child process that ends counts as a failed engine at once. Server processes of tests have no
    workers with ``TESTS_RUNNER=grpc``.
    """
    with pytest.MonkeyPatch.context() as patched:
        # The objects of tests are frozen, which must not look like the start of a server.
        patched.setattr("vlmkit.kit.heap.settle_more", lambda: None)
        if os.environ.get("TESTS_RUNNER") == "subprocess":
            patched.setenv("VLMKIT_RUNNER__USE", "subprocess")
            patched.setenv("VLMKIT_RUNNER__MAX_RESTARTS", "0")
        yield


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


CANNOT_HOLD = {
    "patches the image decoder of the server's process, and the child has its own": (
        "test_a_disconnect_during_image_decoding_keeps_the_request_from_the_engine",
        "test_a_light_prompt_decodes_no_pixels",
        "test_images_are_decoded_concurrently_in_all_workers_but_one",
    ),
    "patches the tokenizer of the server's process, and the child has its own": (
        "test_a_hanging_tokenizer_does_not_delay_shutdown",
        "test_light_is_refused_by_a_tokenizer_without_support",
        "test_out_of_memory_is_a_503_with_retry_after_and_without_library_text",
    ),
    "patches the engine of the server's process, and the child has its own": (
        "test_a_hanging_engine_does_not_outlive_the_process",
        "test_a_model_without_embeddings_says_yes_or_no",
        "test_a_model_without_images_or_embeddings_is_listed_without_them",
        "test_the_precision_of_each_component_is_listed",
    ),
    "a child that hangs is killed, which frees its memory, so the model is loaded again": (
        "test_a_hanging_model_is_not_loaded_a_second_time",
    ),
    "compares counters at once, which a child reports 20 times a second": (
        "test_rendering_runs_no_engine_step",
        "test_the_cost_of_a_prompt_does_not_reveal_prompts_of_other_tenants",
    ),
}
"""Why tests cannot hold in front of a child process; every other test must."""
CANNOT_HOLD_FOR_WORKERS = {
    "the counters of the other process come 20 times a second, or later": (
        "test_properties_and_slots_show_the_state_without_request_content",
        "test_batch_lines_leave_half_of_the_quota_to_interactive_requests",
    ),
    "is about the runner of a child process": (
        "test_an_answer_of_a_child_process_equals_that_of_a_pipeline",
    ),
    "replicas of workers are a fleet": ("test_running_answers_finish_and_new_ones_are_refused",),
}
"""Why more tests cannot hold in front of workers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests with ``TESTS_RUNNER``, which serves mocks in other processes."""
    if runner := os.environ.get("TESTS_RUNNER"):
        listed = CANNOT_HOLD | (CANNOT_HOLD_FOR_WORKERS if runner == "grpc" else {})
        reasons = {name: reason for reason, names in listed.items() for name in names}
        for item in items:
            if reason := reasons.get(item.name.partition("[")[0]):
                item.add_marker(pytest.mark.skip(reason=reason))
