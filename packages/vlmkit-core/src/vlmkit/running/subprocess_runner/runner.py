"""A runner that answers requests in a child process, which may crash without harm to this one.

A crash fails the requests that the child works for, each with one error, and the child is started
again, with growing pauses. The runner fails for good if the child cannot be started, ends too often
in a row, or is another model after a restart.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from vlmkit.errors import EngineError, WorkerLost
from vlmkit.interfaces.observer import Observer
from vlmkit.running.remote_runner.messages import Started
from vlmkit.running.remote_runner.runner import RemoteRunner
from vlmkit.running.subprocess_runner.child_process import WITH_BLOCKS, WITH_STEPS, ChildProcess
from vlmkit.settings.subprocess import SubprocessSettings

MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 30.0


def _ignore(_: str) -> None:
    pass


class ChildPeer:
    """Starts the child process of a runner, again and again.

    Args:
        plan: what the child builds; see :meth:`vlmkit.plugins.build_context.Pipelines.plan`.
        settings: limits of starting it.
        wanted: what it reports of its engine, as its options.
        who: the name of the runner in errors.

    Attributes:
        child: the process that was started last; None before the first.
    """

    is_owned = True

    def __init__(
        self, plan: bytes, settings: SubprocessSettings, *, wanted: Iterable[str], who: str
    ) -> None:
        self.who = who
        self.child: ChildProcess | None = None
        self._plan = plan
        self._settings = settings
        self._wanted = tuple(wanted)
        self._num_restarts = 0

    def connect(self, on_stage: Callable[[str], None]) -> tuple[ChildProcess, Started]:
        """Start a child, and wait until it has built the model."""
        child = ChildProcess(self._plan, self.who, self._wanted)
        started = child.started(self._settings.start_timeout_s, on_stage)
        self.child = child
        return child, started

    def pauses(self, connected_s: float) -> Iterator[float]:
        """Yield pauses that double with each restart in a row."""
        if connected_s > self._settings.stable_s:
            self._num_restarts = 0
        while self._num_restarts < self._settings.max_restarts:
            pause_s = min(MAX_PAUSE_S, MIN_PAUSE_S * 2 ** min(self._num_restarts, 16))
            self._num_restarts += 1
            yield pause_s

    def lost(self, reason: str) -> EngineError:
        """Return the error of a request whose child ended."""
        return WorkerLost(f"the process of the model ended ({reason})")

    def absent(self) -> EngineError:
        """Return the error of a request while no child runs."""
        return WorkerLost("the model is being restarted")

    def given_up(self, reason: str) -> str:
        """Return why the runner failed for good."""
        return f"{self.who}: its process ended too often, at last by {reason}"


class SubprocessRunner(RemoteRunner):
    """Answers requests in a child process.

    Args:
        plan: what the child builds; see :meth:`vlmkit.plugins.build_context.Pipelines.plan`.
        settings: limits of starting it.
        observers: receive the events of requests, of steps and of the cache in this process, by
            name; closed with the runner.
        who: the name of the runner in errors.
        on_stage: called with the name of each stage of building the model when it begins, except
            after a restart.

    Raises:
        VlmkitError: the child cannot build the model.
        EngineError: the child ended before it had built the model.
    """

    def __init__(
        self,
        plan: bytes,
        settings: SubprocessSettings,
        observers: Mapping[str, Observer],
        who: str = "runner 'subprocess'",
        on_stage: Callable[[str], None] = _ignore,
    ) -> None:
        types = [type(each) for each in observers.values()]
        wanted = [WITH_STEPS] if any(each.step is not Observer.step for each in types) else []
        if any(each.blocks is not Observer.blocks for each in types):
            wanted.append(WITH_BLOCKS)
        self._child_peer = ChildPeer(plan, settings, wanted=wanted, who=who)
        super().__init__(self._child_peer, observers, on_stage)

    @property
    def pid(self) -> int | None:
        """The process id of the child; None while none runs."""
        child = self._child_peer.child
        return None if child is None or not self._has_connection else child.pid
