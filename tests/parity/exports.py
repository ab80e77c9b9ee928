"""Families as ONNX folders, each exported once, the next ones while a test runs.

An export takes seconds of one core, mostly in torch's tracer, and is half of what all tests take.
A process of its own traces ahead; what it has not begun when a test asks is exported here.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

Export = tuple[str, str]
"""A family's name and a precision."""


class Exports:
    """Folders of exported families.

    Args:
        saved: gives the checkpoint folder of a family.
        root: where exports go.
        ahead: what tests will ask for, in their order.
    """

    def __init__(self, saved: Callable[[str], Path], root: Path, ahead: Iterable[Export]) -> None:
        self._saved, self._root = saved, root
        self._ahead = list(dict.fromkeys(ahead))
        self._pool: ProcessPoolExecutor | None = None
        self._begun: dict[Export, Future[None]] = {}
        self._done: set[Export] = set()

    def folder(self, name: str, precision: str = "fp32") -> Path:
        """Return where a family's export is; make it if there is none."""
        wanted = (name, precision)
        if wanted not in self._done:
            self._begin_others(wanted)
            self._finish(wanted)
        return self._place(wanted)

    def _finish(self, wanted: Export) -> None:
        """Export what nobody has begun; else help with what comes later until it is done."""
        begun = self._begun.get(wanted)
        if begun is None or begun.cancel():
            self._make(wanted)
            return
        for later, future in self._begun.items():
            if begun.done():
                break
            if later not in self._done and future.cancel():
                self._make(later)
        begun.result()
        self._done.add(wanted)

    def _make(self, wanted: Export) -> None:
        name, precision = wanted
        export(name, self._saved(name), self._place(wanted), precision)
        self._done.add(wanted)

    def close(self) -> None:
        """End the process that exports ahead."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _begin_others(self, wanted: Export) -> None:
        """Start on what comes later, once; there is nothing where few tests run."""
        others = [export for export in self._ahead if export != wanted]
        if self._pool is not None or not others:
            return
        spawn = multiprocessing.get_context("spawn")  # a fork would copy torch's threads
        self._pool = ProcessPoolExecutor(1, spawn, initializer=use_one_thread)
        for name, precision in others:
            task = (name, self._saved(name), self._place((name, precision)), precision)
            self._begun[name, precision] = self._pool.submit(export, *task)

    def _place(self, wanted: Export) -> Path:
        return self._root / wanted[1] / wanted[0]


def ahead(items: Iterable[Any]) -> Iterator[Export]:
    """Yield what tests will ask for, by their parameters; a wrong guess costs an export."""
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        name = params.get("name", getattr(item.cls, "family", None))
        if "exported" in item.fixturenames and "torch" not in params.values() and name:
            yield name, params.get("precision", getattr(item.cls, "precision", "fp32"))


def export(name: str, checkpoint: Path, folder: Path, precision: Any) -> None:
    """Export a family; imports what is heavy."""
    from vlmkit.checkpoint import Checkpoint
    from vlmkit_onnx.export import exporter

    exporter.export(Checkpoint(name, checkpoint), folder, precision, lambda _: None)


def use_one_thread() -> None:
    """Leave the other cores to the tests."""
    import torch

    torch.set_num_threads(1)
