"""Loads a model in the background while the MCP server already answers.

MCP clients expect a server to respond within seconds, and a large model takes minutes to load.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from vlmkit.errors import PluginError

if TYPE_CHECKING:
    from vlmkit import Model  # a runtime import would load numpy for a help text


class BackgroundModel:
    """Loads a model in a daemon thread, which does not keep the process alive.

    Args:
        load: loads the model.
        on_failure: called in that thread if loading fails.
    """

    def __init__(
        self, load: "Callable[[], Model]", on_failure: Callable[[Exception], None]
    ) -> None:
        self._load = load
        self._on_failure = on_failure
        self._loaded: Future[Model] = Future()
        self._loaded.set_running_or_notify_cancel()  # a cancelled waiter must not cancel it
        self._lock = threading.Lock()
        self._is_closed = False

    def start(self) -> None:
        """Start loading."""
        threading.Thread(target=self._run, name="vlmkit-load", daemon=True).start()

    async def get(self) -> "Model":
        """Wait for the model and return it.

        Raises:
            Exception: the error of loading.
        """
        return await asyncio.wrap_future(self._loaded)

    def close(self) -> None:
        """Close the model, now or as soon as it is loaded."""
        with self._lock:
            self._is_closed = True
            if self._loaded.done() and self._loaded.exception() is None:
                self._loaded.result().close()

    def _run(self) -> None:
        try:
            model = self._load()
        except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is not an Exception
            failure = error if isinstance(error, Exception) else PluginError(type(error).__name__)
            self._on_failure(failure)
            self._loaded.set_exception(failure)
            return
        with self._lock:
            if self._is_closed:
                model.close()
            self._loaded.set_result(model)
