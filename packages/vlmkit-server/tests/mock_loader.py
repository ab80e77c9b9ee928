"""A loader of mocks that tests can block or break, and that counts loads and memory."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from running_server import mock_pipeline

from vlmkit.errors import CheckpointError
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit_server.fleet.model_spec import ModelSpec


class MockLoader:
    """Loads mocks and counts them.

    Args:
        make: creates a mock.

    Attributes:
        num_loads: number of started loads by name.
        held: bytes of models that are loading, loaded or closing.
        most_held: the maximum of that.
    """

    def __init__(self, make: Callable[[], Pipeline] = mock_pipeline) -> None:
        self._make = make
        self.num_loads: Counter[str] = Counter()
        self.loaded_bytes = self.max_loaded_bytes = 0
        self._broken: set[str] = set()
        self._gates: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def spec(self, name: str, size: int = 1, **fields: Any) -> ModelSpec:
        """Return the spec of a mock of some size, which is stated or estimated."""
        if "weigh" not in fields:
            fields["memory_bytes"] = size
        self._gates[name] = threading.Event()
        self._gates[name].set()
        return ModelSpec(load=partial(self._load, name, size), **fields)

    def block(self, name: str) -> None:
        """Block the loading of a model until it is released."""
        self._gates[name].clear()

    def release(self, name: str) -> None:
        self._gates[name].set()

    def set_broken(self, name: str, *, is_broken: bool = True) -> None:
        """Let the loading of a model fail from now on, or succeed."""
        (self._broken.add if is_broken else self._broken.discard)(name)

    def _load(self, name: str, size: int) -> Pipeline:
        self.num_loads[name] += 1
        self._count(size)
        self._gates[name].wait()
        if name in self._broken:
            self._count(-size)
            raise CheckpointError(f"the weights of {name!r} are broken")
        pipeline = self._make()
        close = pipeline.close

        def closed() -> None:
            close()
            self._count(-size)

        pipeline.close = closed  # type: ignore[method-assign]
        return pipeline

    def _count(self, size: int) -> None:
        with self._lock:
            self.loaded_bytes += size
            self.max_loaded_bytes = max(self.max_loaded_bytes, self.loaded_bytes)
