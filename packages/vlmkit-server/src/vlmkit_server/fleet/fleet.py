"""Who has which models loaded and unloaded, and who has them at all.

A model is loaded with the server, for the first request that names it, or because somebody says
so; it is unloaded because somebody says so, or when nobody asked for a while. Is called in the
event loop's thread and never holds it up.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence as Seq
from contextlib import asynccontextmanager
from functools import partial

from vlmkit.errors import EngineFailed, RequestError, VlmkitError
from vlmkit.interfaces.runner import Runner
from vlmkit_server.fleet.load_failure import (
    RETRY_LOAD_S,
    as_exception,
    closing_error,
    not_there,
    refusal,
)
from vlmkit_server.fleet.load_queue import LoadQueue
from vlmkit_server.fleet.load_thread import LoadThread
from vlmkit_server.fleet.load_watch import LoadWatch
from vlmkit_server.fleet.model_handle import ModelHandle
from vlmkit_server.fleet.model_registry import ModelRegistry
from vlmkit_server.fleet.recovery import Restarts
from vlmkit_server.http.errors import Overloaded, Unavailable
from vlmkit_server.settings.fleet import FleetSettings

log = logging.getLogger(__name__)

OnLoaded = Callable[[Seq[str]], None]


class Fleet:
    """Loads and unloads models, and lends them.

    Args:
        roster: the models.
        settings: when they are loaded and unloaded.
        max_waiting: requests that may wait for models, together.

    Attributes:
        error: why the server cannot go on, once it cannot.
        on_loaded: called in a thread with the names of the models that are there, when all are that
            are to be at the start.
    """

    def __init__(self, roster: ModelRegistry, settings: FleetSettings, max_waiting: int) -> None:
        self.settings = settings
        self.error: Exception | None = None
        self.on_loaded: OnLoaded = _tell_nobody
        self._roster = roster
        self._models = roster.models.values()
        self._max_waiting = max_waiting
        self._on_error: Callable[[], None] = _tell_nobody
        self._thread = LoadThread()
        self._restarts = Restarts(settings.max_restarts)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue = LoadQueue(
            self._models,
            settings.memory_budget_bytes,
            self._thread,
            self._ready,
            on_failed=self._try_again,
            on_stuck=self._note_stuck,
            watch=LoadWatch(settings.load_timeout_s, self._note_endless_load),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # For requests.

    @asynccontextmanager
    async def leased(self, name: str) -> AsyncIterator[Runner]:
        """Give a model's runner, which stays in memory for as long as the context is open.

        Has the model loaded where requests may do that, and waits for it.

        Raises:
            ModelNotFound: there is no such model.
            Unavailable: it is not there, and will not be soon enough.
            Overloaded: too many wait already.
        """
        model = self._roster.find(name)
        if model.state == "ready":
            model.num_users += 1
        else:
            await self._arrival(model)
        try:
            yield _runner_of(model)
        finally:
            model.num_users -= 1
            model.last_used_s = time.monotonic()
            self._let_go(model)

    async def _arrival(self, model: ModelHandle) -> None:
        """Return when a model is there; who waited for it is one of its users then."""
        if sum(each.num_waiting for each in self._models) >= self._max_waiting:
            raise Overloaded("too many requests wait for their models", hint="try again later")
        model.num_waiting += 1
        try:
            await self._asked_for(model)
        except BaseException:
            model.num_waiting -= 1
            self._let_go(model)
            raise
        model.num_waiting -= 1
        model.num_users += 1

    async def _asked_for(self, model: ModelHandle) -> None:
        try:
            async with asyncio.timeout(self.settings.load_wait_s):
                while model.state != "ready":
                    self._ask_for(model)
                    await model.changed()
        except TimeoutError:
            raise not_there(model, "the model was not loaded in time") from None

    def _ask_for(self, model: ModelHandle) -> None:
        """Have a model loaded that is not, if a request may do that.

        Raises:
            Unavailable: it may not.
        """
        can_load = model.offer.load is not None and not model.is_dead
        is_retried = can_load and time.monotonic() - model.failed_s >= RETRY_LOAD_S
        if model.state == "failed" and not is_retried:
            raise refusal(model)
        if not can_load:
            raise not_there(model, "the model is still loading")
        if model.state in ("failed", "unloaded"):
            if (model.offer.when or self.settings.load) == "request":
                raise Unavailable("the model is not loaded", code="model_unloaded")
            self._queue.want(model)

    # For those who say what is loaded.

    def wish(self, model: ModelHandle) -> None:
        """Have a model loaded, if it is not.

        Raises:
            RequestError: nothing here can load it.
            Unavailable: it has failed for good.
        """
        _check_loadable(model)
        if model.is_dead:
            raise refusal(model)
        model.is_wanted = model.state != "ready"
        if model.state in ("failed", "unloaded"):
            self._queue.want(model)

    async def load(self, model: ModelHandle) -> None:
        """Load a model, if it is not, and return when it is there; who goes away stops nothing.

        Raises:
            RequestError: nothing here can load it.
            Unavailable: it could not be loaded, or somebody did not want it any more.
        """
        self.wish(model)
        while model.state != "ready":
            if model.state == "failed":
                raise refusal(model)
            if not model.is_wanted:
                raise Unavailable("the model was unloaded meanwhile", code="model_unloaded")
            await model.changed()

    def dismiss(self, model: ModelHandle) -> asyncio.Task[None]:
        """Take a model out of memory when its answers have ended; the task ends then.

        Who asks for it meanwhile waits, and it is loaded again where requests may do that.

        Raises:
            RequestError: nothing here could load it again.
        """
        _check_loadable(model)
        model.is_wanted = False
        self._queue.settle()
        if model.state == "ready":
            self._queue.leave(model)
        task = asyncio.ensure_future(self._dismissed(model))
        self._keep(task)
        return task

    async def _dismissed(self, model: ModelHandle) -> None:
        while model.state == "loading":  # which nothing can stop; requests that came first go first
            await model.changed()
        if model.state == "ready":
            self._queue.leave(model)
        while model.state == "unloading":
            await model.changed()
        if model.state == "failed" and not model.is_dead:
            model.forget()

    async def unload(self, model: ModelHandle) -> None:
        """Take a model out of memory, and return then; who goes away stops nothing."""
        await asyncio.shield(self.dismiss(model))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)  # the event loop itself keeps none
        task.add_done_callback(self._tasks.discard)

    def _let_go(self, model: ModelHandle) -> None:
        """See to what can be done now that somebody is gone."""
        self._queue.settle()
        self._watch(model)

    def _watch(self, model: ModelHandle) -> None:
        """Have a model unloaded that stays idle, if it is."""
        idle_s = model.offer.idle_unload_s or self.settings.idle_unload_s
        if idle_s is None or not model.is_idle:
            return
        if timer := self._timers.pop(model.name, None):
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[model.name] = loop.call_later(idle_s, self._unload_idle, model)

    def _unload_idle(self, model: ModelHandle) -> None:
        del self._timers[model.name]
        if model.is_idle:
            self._queue.leave(model)

    # Start and end.

    def start(self) -> None:
        """Have those loaded that are to be there at the start."""
        self._loop = asyncio.get_running_loop()
        first = [model for model in self._models if model.is_expected and model.offer.load]
        for model in first:
            model.is_wanted = True
            self._queue.want(model)
        self._keep(asyncio.ensure_future(self._tell_start(first)))

    async def _tell_start(self, first: Seq[ModelHandle]) -> None:
        """Tell how the start went, when it is over."""
        for model in first:
            while model.is_expected:
                await model.changed()
        if not self._roster.has_failed:
            names = [model.name for model in self._models if model.state == "ready"]
            await self._thread.run(partial(self.on_loaded, names))
            return
        for model in first:
            if model.error is not None:
                self._fail(as_exception(model.name, model.error))

    def tell_errors(self, on_error: Callable[[], None]) -> None:
        """Call a function, in any thread, when there is an ``error``; at once if there is one."""
        self._on_error = on_error
        if self.error is not None:
            on_error()

    def add(self, model: ModelHandle, runner: Runner) -> None:
        """Serve a model that is there; its runner is closed in the end."""
        self._thread.add(runner)
        self._ready(model, runner)

    def _ready(self, model: ModelHandle, runner: Runner) -> None:
        model.finish(runner)
        log.info("model %r is ready", model.name)
        self._watch(model)
        runner.on_failure(partial(self._note_death, model))

    # Engines that fail for good.

    def _note_death(self, model: ModelHandle, cause: BaseException) -> None:
        """See to a model whose engine failed; is called in any thread."""
        if model.is_restartable and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(self._restart, model, cause)
        else:
            self._fail(_ended(f"the engine of model {model.name!r} failed", cause))

    def _restart(self, model: ModelHandle, cause: BaseException) -> None:
        """Unload a model whose engine failed, once all have their errors, and load it again."""
        if not model.is_dead or not self._schedule(model, cause):
            return
        self._queue.leave(model)

    def _try_again(self, model: ModelHandle, error: BaseException) -> None:
        """Load a model once more that could not be loaded again."""
        if model.is_restarting and self._schedule(model, error):
            self._queue.want(model)

    def _schedule(self, model: ModelHandle, cause: BaseException) -> bool:
        """Have a model loaded again, some time from now; False if that was tried too often."""
        now = time.monotonic()
        wait_s = self._restarts.next_wait_s(model.name, now)
        if wait_s is None:
            self._fail(_ended(f"the engine of model {model.name!r} failed again and again", cause))
            return False
        log.error("model %r failed, and is loaded again in %g s", model.name, wait_s)
        model.restart(now + wait_s)
        asyncio.get_running_loop().call_later(wait_s, self._end_wait, model)
        return True

    def _end_wait(self, model: ModelHandle) -> None:
        """Let a model be loaded again: timers may come a little before the clock says so."""
        model.not_before_s = 0.0
        self._queue.settle()

    def _note_stuck(self, model: ModelHandle, error: BaseException) -> None:
        """End the server if a model that hangs was to make room for itself."""
        if model.is_restarting:
            self._fail(_ended(f"the engine of model {model.name!r} hangs", error))

    def _note_endless_load(self, name: str) -> None:
        timeout_s = self.settings.load_timeout_s
        self._fail(_ended(f"model {name!r} was not loaded within {timeout_s:g} s"))

    def _fail(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
            self._on_error()

    def close(self) -> None:
        """Close every runner, whether or not another one can be closed."""
        if (error := self._thread.close()) is not None:
            self._fail(closing_error(error))


def _tell_nobody(*_: object) -> None:
    pass


def _ended(message: str, cause: BaseException | None = None) -> VlmkitError:
    """Return why the server ended."""
    error = EngineFailed(
        f"{message}, and the server ended", hint="the log says why; start the server again"
    )
    error.__cause__ = cause
    return error


def _runner_of(model: ModelHandle) -> Runner:
    if model.runner is None:
        raise RuntimeError("a model that is ready has a runner")
    return model.runner


def _check_loadable(model: ModelHandle) -> None:
    if model.offer.load is None:
        raise RequestError("this model is not loaded and unloaded here", param="model")
