"""What a server serves right now: its models and how far they are, and the requests under way.

Models may still be loading when the port is open: they are added from another thread. All else is
called in the event loop's thread.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from litestar.types import Receive

from vlmkit.errors import RequestError
from vlmkit.model import Model
from vlmkit.seams.runner import Runner
from vlmkit.server.errors import ClientGone, ModelNotFound, Overloaded, Unavailable
from vlmkit.server.toolbox import Toolbox
from vlmkit.settings.server import ServerSettings

log = logging.getLogger(__name__)

T = TypeVar("T")
State = Literal["waiting", "loading", "ready", "failed"]


Served = Runner | Model
"""What a server can be given: a runner, or a model, whose runner it takes."""


def runner_of(served: Served) -> Runner:
    """Return who answers the requests."""
    return served.runner if isinstance(served, Model) else served


class ServedModel:
    """One model that is served, or will be."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.created = int(time.time())
        self.runner: Runner | None = None
        self._is_failed = False
        self._started = self._ended = 0.0

    def start(self) -> None:
        """Note that it is being loaded."""
        self._started = time.monotonic()

    def finish(self, runner: Runner) -> None:
        """Serve it from now on."""
        self._ended = time.monotonic()
        self.runner = runner

    def fail(self) -> None:
        """Note that it cannot be loaded."""
        self._ended = time.monotonic()
        self._is_failed = True

    @property
    def state(self) -> State:
        """How far it is; a runner that can answer nothing any more has failed."""
        if self.runner is not None:
            return "ready" if self.runner.is_ready else "failed"
        if self._is_failed:
            return "failed"
        return "loading" if self._started else "waiting"

    @property
    def is_dead(self) -> bool:
        """Whether it was loaded and can serve nothing any more; only a new process can."""
        return self.runner is not None and not self.runner.is_ready

    @property
    def load_s(self) -> float:
        """How long loading took, or takes so far."""
        return (self._ended or time.monotonic()) - self._started if self._started else 0.0


class Service:
    """The models by name, and whether work is taken."""

    def __init__(
        self, names: Iterable[str], settings: ServerSettings, toolbox: Toolbox | None = None
    ) -> None:
        self.models = {name: ServedModel(name) for name in names}
        self.settings = settings
        self.toolbox = toolbox or Toolbox()
        self.is_draining = False
        self.num_open = 0
        self.num_ignored: Counter[str] = Counter()  # requests, by keys that had no effect on them
        self.num_unconstrained = 0  # requests with tools whose schemas nothing here keeps to
        self._num_admitted = 0
        self._num_pending_bytes = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    # Who may come in.

    def runner(self, name: str) -> Runner:
        """Return a model's runner.

        Raises:
            ModelNotFound: there is no such model.
            Unavailable: it is not ready.
        """
        model = self.model(name)
        if model.is_dead:
            raise Unavailable("the model has failed", code="model_failed")
        if model.state == "failed":
            raise Unavailable("the model could not be loaded", code="model_failed")
        if model.runner is None:
            raise Unavailable("the model is still loading", code="model_loading")
        return model.runner

    def model(self, name: str) -> ServedModel:
        """Return a model that is served, loaded or not.

        Raises:
            ModelNotFound: there is no such model.
        """
        if (model := self.models.get(name)) is None:
            raise ModelNotFound(
                "the model is not served here", param="model", hint="GET /v1/models lists them"
            )
        return model

    def name(self, given: str | None) -> str:
        """Return which model is meant where a request need not say so.

        Raises:
            RequestError: there are several.
        """
        if given is None and len(self.models) != 1:
            raise RequestError("model must be given: several are served", param="model")
        return next(iter(self.models)) if given is None else given

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Take one request in, for as long as the context is open.

        Raises:
            Unavailable: the server is shutting down.
            Overloaded: there are too many requests under way.
        """
        if self.is_draining:
            raise Unavailable("the server is shutting down", code="server_draining")
        if self._num_admitted >= self.settings.max_requests:
            raise Overloaded("too many requests are under way", hint="try again later")
        self._num_admitted += 1
        try:
            yield
        finally:
            self._num_admitted -= 1

    @contextmanager
    def reserved(self, num_bytes: int) -> Iterator[None]:
        """Set memory for a body aside, for as long as the context is open.

        Raises:
            Overloaded: too much is set aside already.
        """
        if self._num_pending_bytes + num_bytes > self.settings.max_pending_body_bytes:
            raise Overloaded("too many large requests are being read", hint="try again later")
        self._num_pending_bytes += num_bytes
        try:
            yield
        finally:
            self._num_pending_bytes -= num_bytes

    @property
    def has_failed(self) -> bool:
        """Whether a model is dead, or none of them could be loaded."""
        models = self.models.values()
        states = {model.state for model in models}
        return states == {"failed"} or any(model.is_dead for model in models)

    @property
    def is_full(self) -> bool:
        """Whether the next request would be refused for want of room."""
        runners = [model.runner for model in self.models.values() if model.runner]
        return self._num_admitted >= self.settings.max_requests or any(
            runner.is_full for runner in runners
        )

    # Who is in.

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Count a request of any kind, which a drain waits for."""
        self.num_open += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            if not self.num_open:
                self._is_idle.set()

    async def attend(self, work: Coroutine[Any, Any, T], receive: Receive) -> T:
        """Do the work of one request for as long as anyone wants its result.

        Args:
            work: is cancelled when the client goes away or the server gives up.
            receive: the connection, of which nothing but its end is expected.

        Raises:
            ClientGone: the client closed the connection first.
            Unavailable: the server is shutting down and did not wait any longer.
        """
        task = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(_gone(receive))
        self._tasks.add(task)
        try:
            await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
            if task.cancelled():
                raise Unavailable("the server is shutting down", code="server_draining")
            return task.result()
        finally:
            self._tasks.discard(task)
            task.cancel()
            watcher.cancel()
            await asyncio.gather(task, watcher, return_exceptions=True)

    # The end.

    async def drain(self, timeout_s: float) -> bool:
        """Take no more work and wait for what is under way; tell whether it ended in time.

        What is left after the time is cancelled; each such request still gets its error.
        """
        self.is_draining = True
        try:
            await asyncio.wait_for(self._is_idle.wait(), timeout_s)
        except TimeoutError:
            log.warning(
                "cutting off what still runs after %g s: requests: %d", timeout_s, self.num_open
            )
            for task in self._tasks:
                task.cancel()
            return False
        return True


async def _gone(receive: Receive) -> None:
    """Return when the client closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
