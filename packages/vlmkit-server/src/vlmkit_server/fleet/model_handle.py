"""One model of a server: its state, its runner, and what wants it loaded.

A state machine without a clock or thread of its own; the fleet decides the transitions. It is used
in the event loop's thread::

    unloaded -> waiting -> loading -> ready -> unloading -> unloaded
                              |
                              +-> failed -> waiting

A ready model whose runner cannot answer is failed, or restarting if it becomes ready by itself.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from vlmkit.interfaces.runner import Runner, RunnerFacts
from vlmkit.kit.runner_state import is_restarting
from vlmkit_server.fleet.model_spec import ModelSpec

State = Literal["unloaded", "waiting", "loading", "ready", "unloading", "failed", "restarting"]


class ModelHandle:
    """One model.

    Attributes:
        name: the operator's name for it.
        spec: how it is served.
        runner: its runner; None while it is not in memory.
        facts: the runner's facts, which stay known after it is unloaded.
        memory_bytes: its size in the memory budget; None while unknown.
        num_users: requests that are being answered.
        num_waiting: requests that wait for it.
        is_wanted: whether to load it even if no request waits for it.
        is_expected: whether the server is ready only after it was loaded, or could not be.
        last_used_s: when its last request ended, or when it was loaded.
        failed_s: when loading it last failed.
        error: why it could not be loaded.
        is_restartable: whether it is loaded again when its engine fails for good.
        is_restarting: whether its engine failed, and it is not loaded again yet.
        num_restarts: number of restarts.
        not_before_s: the earliest time at which it may be loaded.
        took_s: how long loading it took last; None before the first time.
        changes: how often it entered each state.
        on_state: called with its name and state whenever the state changes.
    """

    def __init__(
        self, name: str, spec: ModelSpec, *, is_expected: bool, is_restartable: bool = False
    ) -> None:
        self.name = name
        self.spec = spec
        self.created = int(time.time())
        self.runner: Runner | None = None
        self.facts: RunnerFacts | None = None
        self.memory_bytes = spec.memory_bytes
        self.num_users = self.num_waiting = 0
        self.is_wanted = False
        self.is_expected = self._is_loaded_at_start = is_expected
        self.last_used_s = self.failed_s = 0.0
        self.error: BaseException | None = None
        self.is_restartable = is_restartable and spec.load is not None
        self.is_restarting = False
        self.num_restarts = 0
        self.not_before_s = 0.0
        self.took_s: float | None = None
        self.changes: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()  # by runners that are closed
        self._state: State = "waiting" if is_expected else "unloaded"
        self._change = asyncio.Event()
        self.on_state: Callable[[str, State], None] = _ignore
        self._started_s = self._ended_s = 0.0

    # Transitions.

    def mark_waiting(self) -> None:
        """Record that it waits to be loaded."""
        self._to("waiting")

    def mark_unloaded(self) -> None:
        """Record that it is not in memory, and does not wait to be loaded."""
        self.runner = self.error = None
        self.is_expected = False
        self._to("unloaded")

    def mark_loading(self) -> None:
        """Record that it is being loaded."""
        self._started_s, self._ended_s = time.monotonic(), 0.0
        self._to("loading")

    def mark_ready(self, runner: Runner) -> None:
        """Record that it is loaded and serves requests."""
        self._ended_s = self.last_used_s = time.monotonic()
        if self._started_s:
            self.took_s = self._ended_s - self._started_s
        self.runner, self.facts, self.error = runner, runner.facts, None
        self.is_wanted = self.is_expected = self.is_restarting = False
        self._to("ready")

    def mark_failed(self, error: BaseException | None = None) -> None:
        """Record that it cannot be loaded."""
        self._ended_s = self.failed_s = time.monotonic()
        self.error = error
        self.is_wanted = self.is_expected = False
        self._to("failed")

    def mark_restarting(self, not_before_s: float) -> None:
        """Record that it is to be loaded again at a time, even without a waiting request."""
        self.is_wanted = self.is_restarting = True
        self.not_before_s = not_before_s
        self.num_restarts += 1

    def mark_unloading(self) -> None:
        """Accept no new requests; it is unloaded once the running ones have ended."""
        self._to("unloading")

    def detach_runner(self) -> Runner | None:
        """Return the runner, to be closed, and keep its counters."""
        runner, self.runner = self.runner, None
        if runner is not None:
            self._counted.update(_counters(runner))
        return runner

    async def state_change(self) -> None:
        """Wait until its state changes."""
        await self._change.wait()

    def _to(self, state: State) -> None:
        self._state = state
        self.on_state(self.name, state)
        self.changes[state] += 1
        self._change.set()
        self._change = asyncio.Event()

    # Properties.

    @property
    def names(self) -> tuple[str, ...]:
        """All names that clients may use, its own name first."""
        return (self.name, *self.spec.aliases)

    @property
    def state(self) -> State:
        """Its state; a model whose runner cannot answer has failed, unless it restarts itself."""
        if not self.is_dead:
            return self._state
        return "restarting" if self.is_recovering else "failed"

    @property
    def is_dead(self) -> bool:
        """Whether it was loaded, and can no longer serve requests."""
        return self._state == "ready" and self.runner is not None and not self.runner.is_ready

    @property
    def is_recovering(self) -> bool:
        """Whether its runner cannot answer now, and becomes ready again by itself."""
        return self.is_dead and self.runner is not None and is_restarting(self.runner)

    @property
    def needs_new_process(self) -> bool:
        """Whether it is dead, and only a new process of the server can serve it."""
        return self.is_dead and not self.is_restartable and not self.is_recovering

    @property
    def failed_at_start(self) -> bool:
        """Whether it was to be loaded at startup, and could not be."""
        return self._state == "failed" and self._is_loaded_at_start

    @property
    def is_unloading(self) -> bool:
        """Whether it is unloaded once its last request has ended."""
        return self._state == "unloading"

    @property
    def is_in_memory(self) -> bool:
        """Whether it takes memory, or is about to."""
        return self._state in ("loading", "ready", "unloading")

    @property
    def is_idle(self) -> bool:
        """Whether it can be unloaded and loaded again without affecting any request."""
        is_free = not self.num_users and not self.num_waiting
        return is_free and self.state == "ready" and self.spec.load is not None

    def counters(self) -> Mapping[str, int]:
        """Return the counters of all of its runners."""
        if self.runner is None:
            return dict(self._counted)
        return self._counted + Counter(_counters(self.runner))

    @property
    def ready_in_s(self) -> float | None:
        """In how many seconds it is ready, if loading takes as long as before; None if unknown.

        Models before it in the queue, and requests that must end first, are not counted.
        """
        if self.took_s is None or self._state not in ("waiting", "loading", "unloading"):
            return None
        now = time.monotonic()
        if self._state == "loading":
            left_s = self.took_s - (now - self._started_s)
            return left_s if left_s > 0 else None
        return self.took_s + max(0.0, self.not_before_s - now)

    @property
    def load_s(self) -> float:
        """How long loading took last, or takes so far."""
        if not self._started_s:
            return 0.0
        return (self._ended_s or time.monotonic()) - self._started_s


def _ignore(_name: str, _state: State) -> None:
    pass


def _counters(runner: Runner) -> dict[str, int]:
    stats = runner.stats()
    hits, misses = stats.num_feature_hits, stats.num_feature_misses
    return {**stats.counters, "num_feature_hits": hits, "num_feature_misses": misses}
