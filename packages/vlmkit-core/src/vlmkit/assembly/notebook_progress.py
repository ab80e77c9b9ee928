"""The stages of loading a model, as one line below a notebook's cell.

Shows nothing elsewhere, and imports no library of notebooks: where one runs, it is there.
"""

import importlib
import sys
import time
from typing import Any


class NotebookProgress:
    """Shows which stage of loading has begun, and in the end how long all took.

    Args:
        display: IPython's function that shows something and can replace it.
    """

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None
        self._began_s = time.perf_counter()

    def __call__(self, name: str) -> None:
        """Note that a stage begins."""
        passed_s = time.perf_counter() - self._began_s
        text = f"ready after {passed_s:.1f} s" if name == "ready" else f"loading {name} ..."
        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def notebook_progress() -> NotebookProgress | None:
    """Return what shows stages in the notebook that runs this; None where none does."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if not hasattr(shell, "kernel"):  # a terminal's shell has none
        return None
    return NotebookProgress(importlib.import_module("IPython.display").display)
