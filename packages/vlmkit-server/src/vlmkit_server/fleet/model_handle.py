"""One model that is served, or can be: how far it is, and who wants it.

A state machine without a clock or a thread of its own; what should happen to it is the fleet's to
say. All of it is used in the event loop's thread::

    unloaded -> waiting -> loading -> ready -> unloading -> unloaded
                              |
                              +-> failed -> waiting
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from vlmkit.interfaces.runner import Runner, RunnerFacts
from vlmkit_server.fleet.model_spec import ModelSpec

State = Literal["unloaded", "waiting", "loading", "ready", "unloading", "failed"]


class ModelHandle:
    """One model.

    Attributes:
        name: how the operator calls it.
        offer: how it is served.
        runner: who answers; None while it is not in memory.
        facts: what is known of the runner, and stays known when it is gone.
        memory_bytes: what it counts for; None while nobody knows.
        num_users: requests that are being answered.
        num_waiting: requests that wait for it.
        is_wanted: to be loaded even if no request waits for it.
        is_expected: the server is not ready before it was loaded, or could not be.
        last_used_s: when its last request ended, or when it was loaded.
        failed_s: when it could last not be loaded.
        error: why it could not be loaded.
        is_restartable: whether it is loaded again when its engine fails for good.
        is_restarting: whether that happened, and it is not there again.
        num_restarts: how often that happened.
        not_before_s: when it may be loaded at the earliest.
        took_s: how long it took to be loaded last; None before.
        changes: how often it came to be in each state.
    """

    def __init__(
        self, name: str, offer: ModelSpec, *, is_expected: bool, is_restartable: bool = False
    ) -> None:
        self.name = name
        self.offer = offer
        self.created = int(time.time())
        self.runner: Runner | None = None
        self.facts: RunnerFacts | None = None
        self.memory_bytes = offer.memory_bytes
        self.num_users = self.num_waiting = 0
        self.is_wanted = False
        self.is_expected = self._is_of_start = is_expected
        self.last_used_s = self.failed_s = 0.0
        self.error: BaseException | None = None
        self.is_restartable = is_restartable and offer.load is not None
        self.is_restarting = False
        self.num_restarts = 0
        self.not_before_s = 0.0
        self.took_s: float | None = None
        self.changes: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()  # by runners that are gone
        self._state: State = "waiting" if is_expected else "unloaded"
        self._change = asyncio.Event()
        self.tell: Callable[[str, State], None] = _tell_nobody  # its name and state, as they change
        self._started_s = self._ended_s = 0.0

    # What happens to it.

    def want(self) -> None:
        """Let it wait for its turn to be loaded."""
        self._to("waiting")

    def forget(self) -> None:
        """Take it out of memory, or from those who wait for their turn."""
        self.runner = self.error = None
        self.is_expected = False
        self._to("unloaded")

    def start(self) -> None:
        """Note that it is being loaded."""
        self._started_s, self._ended_s = time.monotonic(), 0.0
        self._to("loading")

    def finish(self, runner: Runner) -> None:
        """Serve it from now on."""
        self._ended_s = self.last_used_s = time.monotonic()
        if self._started_s:
            self.took_s = self._ended_s - self._started_s
        self.runner, self.facts, self.error = runner, runner.facts, None
        self.is_wanted = self.is_expected = self.is_restarting = False
        self._to("ready")

    def fail(self, error: BaseException | None = None) -> None:
        """Note that it cannot be loaded."""
        self._ended_s = self.failed_s = time.monotonic()
        self.error = error
        self.is_wanted = self.is_expected = False
        self._to("failed")

    def restart(self, not_before_s: float) -> None:
        """Have it loaded again, and not too soon, whether or not a request waits for it."""
        self.is_wanted = self.is_restarting = True
        self.not_before_s = not_before_s
        self.num_restarts += 1

    def leave(self) -> None:
        """Take no new requests, so that it can be unloaded when those under way have ended."""
        self._to("unloading")

    def retire(self) -> Runner | None:
        """Give the runner away, to be closed, and keep what it counted."""
        runner, self.runner = self.runner, None
        if runner is not None:
            self._counted.update(_counters(runner))
        return runner

    async def changed(self) -> None:
        """Wait until its state is another one."""
        await self._change.wait()

    def _to(self, state: State) -> None:
        self._state = state
        self.tell(self.name, state)
        self.changes[state] += 1
        self._change.set()
        self._change = asyncio.Event()

    # What is so.

    @property
    def names(self) -> tuple[str, ...]:
        """All that clients may call it by, its own name first."""
        return (self.name, *self.offer.aliases)

    @property
    def state(self) -> State:
        """How far it is; a runner that can answer nothing any more has failed."""
        return "failed" if self.is_dead else self._state

    @property
    def is_dead(self) -> bool:
        """Whether it was loaded and can serve nothing any more."""
        return self._state == "ready" and self.runner is not None and not self.runner.is_ready

    @property
    def is_doomed(self) -> bool:
        """Whether it is dead, and only a new process can serve it."""
        return self.is_dead and not self.is_restartable

    @property
    def is_lost(self) -> bool:
        """Whether it was to be there from the start and could not be loaded."""
        return self._state == "failed" and self._is_of_start

    @property
    def is_in_memory(self) -> bool:
        """Whether it takes memory, or is about to."""
        return self._state in ("loading", "ready", "unloading")

    @property
    def is_idle(self) -> bool:
        """Whether it could be unloaded and loaded again, and nobody would lose anything."""
        is_free = not self.num_users and not self.num_waiting
        return is_free and self.state == "ready" and self.offer.load is not None

    def counters(self) -> Mapping[str, int]:
        """Return what all of its runners counted."""
        if self.runner is None:
            return dict(self._counted)
        return self._counted + Counter(_counters(self.runner))

    @property
    def ready_in_s(self) -> float | None:
        """In how many seconds it is there, if it takes as long as before; None where nobody knows.

        Models before it, and requests that have to end first, are not counted.
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


def _tell_nobody(_name: str, _state: State) -> None:
    pass


def _counters(runner: Runner) -> dict[str, int]:
    stats = runner.stats()
    hits, misses = stats.num_feature_hits, stats.num_feature_misses
    return {**stats.counters, "num_feature_hits": hits, "num_feature_misses": misses}
