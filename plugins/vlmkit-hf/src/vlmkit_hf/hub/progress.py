"""One progress bar for all files of a download, on a terminal or in a notebook.

huggingface_hub shows several and leaves them open, so that later output breaks their lines.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm


@contextmanager
def bar(title: str, num_bytes: int) -> Iterator[type[Any]]:
    """Show a bar and clear it at the end; yield the class for huggingface_hub's own bars.

    Log lines appear above it. Nothing is shown if standard error is not a terminal.
    """
    is_off = not num_bytes or are_progress_bars_disabled()
    with tqdm(
        desc=title,
        total=num_bytes,
        unit="B",
        unit_scale=True,
        dynamic_ncols=True,
        leave=False,
        disable=True if is_off else None,
    ) as shown:
        loggers = [logging.getLogger(), logging.getLogger("huggingface_hub")]
        with nullcontext() if shown.disable else logging_redirect_tqdm(loggers):
            yield _counting_for(shown)


def none() -> type[Any]:
    """Return the class for huggingface_hub's own bars if no bar is shown."""
    return _counting_for(None)


def _counting_for(shown: Any) -> type[Any]:
    """Return a class of hidden bars that advance the visible one.

    One download has several bars that count bytes, received or written: the furthest counts.
    """
    lock = threading.Lock()
    furthest = 0

    class Hidden(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)  # huggingface_hub's own
            self._counts_bytes = options.get("unit") == "B"
            self._num_bytes = 0
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal furthest
            if shown is not None and self._counts_bytes:
                with lock:
                    self._num_bytes += int(n or 0)
                    ahead = self._num_bytes - furthest
                    if ahead > 0:
                        furthest += ahead
                        shown.update(ahead)
            return None

    return Hidden
