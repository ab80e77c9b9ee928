"""A pytest plugin that makes the project behave as on macOS or Windows.

Use ``-p other_system`` with the name of the system in ``OTHER_SYSTEM``. Libraries are imported
first and stay unchanged. Then ``sys.platform`` changes, and functions that Python lacks on that
system are removed. Paths, consoles and processes of a real system are not simulated.
"""

import asyncio
import fcntl
import importlib
import mmap
import os
import sys
import types
import warnings

import pytest

OURS = "vlmkit(_(demo|hf|mock|onnx|torch))?"
SYSTEM = os.environ["OTHER_SYSTEM"]
LIBRARIES = (
    *("array_api_compat.numpy", "click", "hypothesis", "litestar", "msgspec", "numpy", "openai"),
    *("PIL.Image", "pluggy", "subprocess", "tempfile", "uvicorn", "onnx"),
)
LINUX_ALONE = {
    os: ("sched_getaffinity",),
    mmap: [name for name in vars(mmap) if name.startswith("MADV_") and "HUGE" in name],
}
NOT_ON_WINDOWS = {
    os: ("sysconf", "getuid", "openpty", "fork"),
    mmap: [name for name in vars(mmap) if name.startswith(("MADV_", "MAP_", "PROT_"))],
}
NO_MODULES_ON_WINDOWS = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "termios")


class MacMemory(mmap.mmap):
    """Advice takes no pages away at once."""

    def madvise(self, *_: int) -> None:
        """Do nothing."""


class WindowsMemory(mmap.mmap):
    """Takes no flags, and no advice."""

    def __new__(
        cls, fileno: int, length: int, *, access: int = 0, offset: int = 0
    ) -> "WindowsMemory":
        return super().__new__(cls, fileno, length, access=access, offset=offset)

    def madvise(self, *_: int) -> None:
        raise AttributeError("madvise")


def _locking(descriptor: int, mode: int, num_bytes: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def pytest_configure(config: pytest.Config) -> None:
    """Become the other system, before any test is collected."""
    with warnings.catch_warnings(action="ignore"):
        for name in LIBRARIES:
            importlib.import_module(name)
    sys.platform = SYSTEM
    _take_away(LINUX_ALONE)
    mmap.mmap = MacMemory
    if SYSTEM == "win32":
        _take_away(NOT_ON_WINDOWS)
        mmap.mmap = WindowsMemory
        asyncio.ProactorEventLoop = asyncio.SelectorEventLoop  # what uvicorn asks for there
        sys.modules.update(dict.fromkeys(NO_MODULES_ON_WINDOWS))
        sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=_locking)
    # Text that our code reads or writes without an encoding would be in the system's own one.
    config.addinivalue_line("filterwarnings", "ignore::EncodingWarning")
    config.addinivalue_line("filterwarnings", rf"error::EncodingWarning:{OURS}(\.|$)")


def _take_away(names: dict[types.ModuleType, object]) -> None:
    for module, gone in names.items():
        for name in gone:
            if hasattr(module, name):
                delattr(module, name)
