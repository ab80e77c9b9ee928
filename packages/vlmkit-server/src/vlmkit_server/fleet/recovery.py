"""Recovers models whose engines failed for good, or ends the server.

A failed model is unloaded and loaded again where the settings say so, with growing waits. Any other
fatal error, and too many restarts in a row, end the server. The load queue does the loading.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable

from vlmkit.errors import EngineFailed, VlmkitError
from vlmkit.kit.one_line import one_line, text_of
from vlmkit_server.fleet.load_queue import LoadQueue
from vlmkit_server.fleet.model_handle import ModelHandle
from vlmkit_server.settings.fleet import FleetSettings

log = logging.getLogger(__name__)

FIRST_WAIT_S = 1.0
MAX_WAIT_S = 60.0
STEADY_S = 600.0  # a model that served for so long starts with the first wait again


class Restarts:
    """Counts consecutive failures of each model, and sets the waits before restarts.

    Args:
        most: consecutive restarts of one model.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tries: Counter[str] = Counter()
        self._last_s: dict[str, float] = {}

    def next_wait_s(self, name: str, now_s: float) -> float | None:
        """Count a failure; return the wait before the restart, or None after too many.

        Each wait is twice as long as the one before.
        """
        if now_s - self._last_s.get(name, now_s) > STEADY_S:
            self._tries[name] = 0
        self._last_s[name] = now_s
        if self._tries[name] >= self._most:
            return None
        self._tries[name] += 1
        return min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._tries[name] - 1, 16))


class Recovery:
    """Restarts failed models, and keeps the error that ends the server.

    Args:
        settings: how often models are restarted.

    Attributes:
        queue: loads and unloads models; set before the first model is added.
        error: why the server cannot continue; None while it can.
    """

    queue: LoadQueue

    def __init__(self, settings: FleetSettings) -> None:
        self.error: Exception | None = None
        self._settings = settings
        self._restarts = Restarts(settings.max_restarts)
        self._on_error: Callable[[], None] = _ignore
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Allow restarts, in the event loop that runs now."""
        self._loop = asyncio.get_running_loop()

    def on_error(self, callback: Callable[[], None]) -> None:
        """Call a function, in any thread, when ``error`` is set; at once if it already is."""
        self._on_error = callback
        if self.error is not None:
            callback()

    def fail(self, error: Exception) -> None:
        """End the server with an error, unless there is one already."""
        if self.error is None:
            self.error = error
            self._on_error()

    def engine_failed(self, model: ModelHandle, cause: BaseException) -> None:
        """Restart a model whose engine failed, or end the server; called in any thread."""
        log.error("the engine of model %r failed: %s", model.name, _reason(cause))
        if model.is_restartable and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(self._restart, model, cause)
        else:
            self.fail(_ended(f"the engine of model {model.name!r} failed", cause))

    def load_failed(self, model: ModelHandle, error: BaseException) -> None:
        """Load a restarting model once more, if that failed."""
        if model.is_restarting and self._schedule(model, error):
            self.queue.enqueue(model)

    def close_failed(self, model: ModelHandle, error: BaseException) -> None:
        """End the server if a restarting model hangs: its memory cannot be freed."""
        if model.is_restarting:
            self.fail(_ended(f"the engine of model {model.name!r} hangs", error))

    def load_timed_out(self, name: str) -> None:
        """End the server: loading a model took too long."""
        timeout_s = self._settings.load_timeout_s
        self.fail(_ended(f"model {name!r} was not loaded within {timeout_s:g} s"))

    def _restart(self, model: ModelHandle, cause: BaseException) -> None:
        """Unload a failed model once its requests have their errors, and load it again."""
        if not model.is_dead or not self._schedule(model, cause):
            return
        self.queue.unload(model)

    def _schedule(self, model: ModelHandle, cause: BaseException) -> bool:
        """Set when a model may be loaded again; False after too many restarts."""
        now = time.monotonic()
        wait_s = self._restarts.next_wait_s(model.name, now)
        if wait_s is None:
            self.fail(_ended(f"the engine of model {model.name!r} failed again and again", cause))
            return False
        log.error("model %r failed, restarting it in %g s", model.name, wait_s)
        model.mark_restarting(now + wait_s)
        asyncio.get_running_loop().call_later(wait_s, self._end_wait, model)
        return True

    def _end_wait(self, model: ModelHandle) -> None:
        """Allow a model to be loaded: timers may fire slightly before the clock says so."""
        model.not_before_s = 0.0
        self.queue.advance()


def _ignore() -> None:
    pass


def _reason(cause: BaseException) -> str:
    """Return an error's type, and its text if it is vlmkit's: others may quote a client."""
    kind = one_line(type(cause).__name__)
    return f"{kind}: {text_of(cause)}" if isinstance(cause, VlmkitError) else kind


def _ended(message: str, cause: BaseException | None = None) -> VlmkitError:
    """Return the error that ends the server."""
    error = EngineFailed(
        f"{message}, and the server ended", hint="the log says why; start the server again"
    )
    error.__cause__ = cause
    return error
