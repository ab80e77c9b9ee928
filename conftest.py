"""What tests of several distributions share: each family's checkpoint, export and answers, once.

Tests may run in several processes side by side (pytest-xdist): what one of them made is there for
all. Nothing heavy is imported before a test asks for it.

Properties are tried with the same examples in every run, so that no change is blamed for what
another brought; ``--hypothesis-profile=explore`` looks for new ones.

Torch computes with one thread, in servers that a test starts, too. With two, threads wait for each
other: beside other tests on two cores, a server took 22 s for what takes 2 s with one.
"""

import functools
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
gc.disable()  # until all tests are collected

collect_ignore_glob = ["packages/vlmkit-testing/src/*", "plugins/vlmkit-torch/src/*"]
"""Templates of plugins have tests, of names that are put in when a project is made of them."""

Make = Callable[[Path], object]
"""Fills an empty folder."""

PATIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
"""No property minds what else runs on the machine; examples share what fixtures made."""

settings.register_profile("same", PATIENT, derandomize=True, database=None)
settings.register_profile("explore", PATIENT, max_examples=2000)
settings.load_profile("same")


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection.

    With all tests a full collection takes more than half a second, and contracts ask for hundreds.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what a system cannot do."""
    if sys.platform == "win32" and item.get_closest_marker("posix"):
        pytest.skip("Windows has no such signals, terminals or links")


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """Yield an empty folder for socket files, whose paths have at most about 100 bytes.

    The paths of ``tmp_path`` grow with the names of tests and of the folder of the project.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Let torch use one thread and be quiet: tiny matrices lose more by sharing than they gain."""
    import torch
    import transformers

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.enable_progress_bar()
    torch.set_num_threads(before)


@pytest.fixture
def in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vlmkit-torch compute float32 models in double precision.

    Sums in another order differ by the last bit, and may round to another integer of an 8-bit
    cache. In double precision that is too rare for a test to see.
    """
    import torch

    from vlmkit_torch.devices import hardware

    monkeypatch.setitem(hardware.DTYPES, "float32", torch.float64)


@pytest.fixture(scope="session")
def made_once(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Make], Path]:
    """Return a function that gives a folder by its name, which whoever asks first fills.

    Others who ask meanwhile, in any process of this run, wait for it. It gets its name when it is
    whole: what could not be made is tried again.
    """
    root = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # a worker's folder lies in that of the run
        root = root.parent

    def folder(name: str, make: Make) -> Path:
        place = root / f"one-{name}"
        with FileLock(f"{place}.lock"):
            if not place.exists():
                begun = tmp_path_factory.mktemp(name)
                make(begun)
                begun.rename(place)
        return place

    return folder


@pytest.fixture(scope="session")
def saved(made_once: Callable[[str, Make], Path]) -> Callable[[str], Path]:
    """Return a function that gives the checkpoint folder of a family."""
    import zoo

    return lambda name: made_once(name, lambda folder: zoo.save(name, folder))


@pytest.fixture(scope="session")
def answered(saved: Callable[[str], Path]) -> Callable[[str], list[Any]]:
    """Return a function that gives transformers' own answers to a family's requests."""
    from parity import runner

    @functools.cache
    def answers(name: str) -> list[Any]:
        return runner.expected(name, saved(name), runner.requests(name))

    return answers


@pytest.fixture(scope="session")
def exported(
    one_thread: None,  # noqa: ARG001 - exports side by side leave each other a core
    saved: Callable[[str], Path],
    made_once: Callable[[str, Make], Path],
) -> Callable[..., Path]:
    """Return a function that gives the ONNX folder of a family, in float32 if not said."""
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit_onnx.export.exporter import export

    def folder(name: str, precision: Any = "fp32") -> Path:
        checkpoint = Checkpoint(name, saved(name))
        return made_once(
            f"{name}-{precision}",
            lambda folder: export(checkpoint, folder, precision, lambda _: None),
        )

    return folder


@pytest.fixture(scope="session")
def tower(
    saved: Callable[[str], Path],
    made_once: Callable[[str, Make], Path],
    exported: Callable[..., Path],
) -> Callable[[str], Path]:
    """Return a function that gives the folder of a family's vision graph, in float32.

    It has no decoder if no test that is not slow needs one.
    """
    from parity import families
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit_onnx.export.exporter import export_tower

    def folder(name: str) -> Path:
        if name not in families.DECODERS_LIKE:
            return exported(name)
        checkpoint = Checkpoint(name, saved(name))
        return made_once(
            f"{name}-tower", lambda folder: export_tower(checkpoint, folder, "fp32", lambda _: None)
        )

    return folder
