"""The models of a server: leases them to requests, and loads and unloads them.

A model is loaded with the server, at its first request, or on a client's order. It is unloaded on a
client's order, or when it is idle for some time. It is used in the event loop's thread and never
blocks it. The load queue loads models; ``recovery`` restarts failed ones.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence as Seq
from contextlib import asynccontextmanager
from functools import partial

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.running.pipeline.alias_runner import AliasRunner
from vlmkit_server.fleet.load_failure import (
    RETRY_LOAD_S,
    as_exception,
    closing_error,
    not_ready,
    refusal,
)
from vlmkit_server.fleet.load_queue import LoadQueue
from vlmkit_server.fleet.load_thread import LoadThread
from vlmkit_server.fleet.load_watch import LoadWatch
from vlmkit_server.fleet.model_handle import ModelHandle
from vlmkit_server.fleet.model_registry import ModelRegistry
from vlmkit_server.fleet.recovery import Recovery
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.settings.fleet import FleetSettings

log = logging.getLogger(__name__)

OnLoaded = Callable[[Seq[str]], None]


class Fleet:
    """Leases models to requests, and loads them at startup and on demand.

    Args:
        registry: the models.
        settings: when they are loaded and unloaded.

    Attributes:
        models: the models.
        control: loads and unloads models on clients' orders.
        recovery: restarts failed models, and has the error that ends the server.
        on_loaded: called in a thread with the names of the loaded models, once every model that
            is loaded at startup is ready.
    """

    def __init__(self, registry: ModelRegistry, settings: FleetSettings) -> None:
        self.settings = settings
        self.recovery = Recovery(settings)
        self.on_loaded: OnLoaded = _ignore
        self._registry = registry
        self.models = registry.models.values()
        self._thread = LoadThread()
        self._queue = self.recovery.queue = LoadQueue(
            self.models,
            settings.memory_budget_bytes,
            self._thread,
            self._on_ready,
            on_failed=self.recovery.load_failed,
            on_stuck=self.recovery.close_failed,
            watch=LoadWatch(settings.load_timeout_s, self.recovery.load_timed_out),
        )
        self.control = ModelControl(self._queue)
        self._idle = _IdleUnloader(self._queue, settings)
        self._start_task: asyncio.Task[None] | None = None  # the event loop has a weak reference

    @asynccontextmanager
    async def leased(
        self, name: str, check_waiting: Callable[[int], None]
    ) -> AsyncIterator[Runner]:
        """Yield a model's runner, which stays in memory while the context is open.

        Loads the model first where requests may do that, and waits for it.

        Args:
            name: the model.
            check_waiting: called before the request waits, with the number of those that wait for
                any model; may raise.

        Raises:
            ModelNotFound: there is no such model.
            Unavailable: it is not loaded, and will not be soon enough.
            Exception: what ``check_waiting`` raised.
        """
        model = self._registry.find(name)
        if model.state == "ready":
            model.num_users += 1
        else:
            check_waiting(sum(each.num_waiting for each in self.models))
            await self._wait_until_ready(model)
        try:
            yield _runner_of(model, name)
        finally:
            model.num_users -= 1
            model.last_used_s = time.monotonic()
            self._request_ended(model)

    async def _wait_until_ready(self, model: ModelHandle) -> None:
        """Wait until a model is ready, and count its new user."""
        model.num_waiting += 1
        try:
            await self._await_load(model)
        except BaseException:
            model.num_waiting -= 1
            self._request_ended(model)
            raise
        model.num_waiting -= 1
        model.num_users += 1

    async def _await_load(self, model: ModelHandle) -> None:
        try:
            async with asyncio.timeout(self.settings.load_wait_s):
                while model.state != "ready":
                    self._request_load(model)
                    await model.state_change()
        except TimeoutError:
            raise not_ready(model, "the model was not loaded in time") from None

    def _request_load(self, model: ModelHandle) -> None:
        """Load a model that is not loaded, if a request may do that.

        Raises:
            Unavailable: it may not.
        """
        can_load = model.spec.load is not None and not model.is_dead
        is_retried = can_load and time.monotonic() - model.failed_s >= RETRY_LOAD_S
        if model.state in ("failed", "restarting") and not is_retried:
            raise refusal(model)
        if not can_load:
            raise not_ready(model, "the model is still loading")
        if model.state in ("failed", "unloaded"):
            if (model.spec.when or self.settings.load) == "request":
                raise Unavailable("the model is not loaded", code="model_unloaded")
            self._queue.enqueue(model)

    def _request_ended(self, model: ModelHandle) -> None:
        self._idle.watch(model)
        self._queue.advance()

    def start(self) -> None:
        """Start to load the models that are loaded at startup."""
        self.recovery.start()
        first = [model for model in self.models if model.is_expected and model.spec.load]
        for model in first:
            model.is_wanted = True
            self._queue.enqueue(model)
        self._start_task = asyncio.ensure_future(self._report_start(first))

    async def _report_start(self, first: Seq[ModelHandle]) -> None:
        """Report the outcome of the startup, when it is over."""
        for model in first:
            while model.is_expected:
                await model.state_change()
        if not self._registry.has_failed:
            names = [model.name for model in self.models if model.state == "ready"]
            await self._thread.run(partial(self.on_loaded, names))
            return
        for model in first:
            if model.error is not None:
                self.recovery.fail(as_exception(model.name, model.error))

    def add(self, model: ModelHandle, runner: Runner) -> None:
        """Serve a model that is loaded already; its runner is closed at the end."""
        self._thread.add(runner)
        self._on_ready(model, runner)

    def _on_ready(self, model: ModelHandle, runner: Runner) -> None:
        model.mark_ready(runner)
        log.info("model %r is ready", model.name)
        self._idle.watch(model)
        runner.on_failure(partial(self.recovery.engine_failed, model))

    def close(self) -> None:
        """Close every runner, even if another one cannot be closed."""
        if (error := self._thread.close()) is not None:
            self.recovery.fail(closing_error(error))


class ModelControl:
    """Loads and unloads models on clients' orders.

    Args:
        queue: loads and unloads them.
    """

    def __init__(self, queue: LoadQueue) -> None:
        self._queue = queue
        self._tasks: set[asyncio.Task[None]] = set()

    def start_loading(self, model: ModelHandle) -> None:
        """Start to load a model, if it is not loaded.

        Raises:
            RequestError: the server cannot load it.
            Unavailable: it has failed for good.
        """
        _check_loadable(model)
        if model.is_dead:
            raise refusal(model)
        model.is_wanted = model.state != "ready"
        if model.state in ("failed", "unloaded"):
            self._queue.enqueue(model)

    async def load(self, model: ModelHandle) -> None:
        """Load a model, if it is not loaded, and wait for it; cancelling this stops nothing.

        Raises:
            RequestError: the server cannot load it.
            Unavailable: loading failed, or another client unloaded it meanwhile.
        """
        self.start_loading(model)
        while model.state != "ready":
            if model.state in ("failed", "restarting"):
                raise refusal(model)
            if not model.is_wanted:
                raise Unavailable("the model was unloaded meanwhile", code="model_unloaded")
            await model.state_change()

    def start_unloading(self, model: ModelHandle) -> asyncio.Task[None]:
        """Unload a model after its answers have ended; returns the task that ends then.

        New requests wait meanwhile, and it is loaded again where requests may do that.

        Raises:
            RequestError: the server could not load it again.
        """
        _check_loadable(model)
        model.is_wanted = False
        self._queue.advance()
        if model.state == "ready":
            self._queue.unload(model)
        task = asyncio.ensure_future(self._unloaded(model))
        self._tasks.add(task)  # the event loop has weak references alone
        task.add_done_callback(self._tasks.discard)
        return task

    async def _unloaded(self, model: ModelHandle) -> None:
        while model.state == "loading":  # cannot be stopped; earlier requests come first
            await model.state_change()
        if model.state == "ready":
            self._queue.unload(model)
        while model.state == "unloading":
            await model.state_change()
        if model.state == "failed" and not model.is_dead:
            model.mark_unloaded()

    async def unload(self, model: ModelHandle) -> None:
        """Unload a model, and wait for it; cancelling this stops nothing."""
        await asyncio.shield(self.start_unloading(model))


class _IdleUnloader:
    """Unloads models that stay idle.

    Args:
        queue: unloads them.
        settings: after what time, unless a model's spec overrides it.
    """

    def __init__(self, queue: LoadQueue, settings: FleetSettings) -> None:
        self._queue = queue
        self._settings = settings
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def watch(self, model: ModelHandle) -> None:
        """Start a model's timer again, if it is idle."""
        idle_s = model.spec.idle_unload_s or self._settings.idle_unload_s
        if idle_s is None or not model.is_idle:
            return
        if timer := self._timers.pop(model.name, None):
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[model.name] = loop.call_later(idle_s, self._unload_idle, model)

    def _unload_idle(self, model: ModelHandle) -> None:
        del self._timers[model.name]
        if model.is_idle:
            self._queue.unload(model)


def _ignore(*_: object) -> None:
    pass


def _runner_of(model: ModelHandle, name: str) -> Runner:
    """Return the runner as requests under a name use it, with the fields that the name sets."""
    if model.runner is None:
        raise RuntimeError("a model that is ready has a runner")
    fields = model.spec.alias_fields.get(name)
    return AliasRunner(model.runner, name, fields) if fields else model.runner


def _check_loadable(model: ModelHandle) -> None:
    if model.spec.load is None:
        raise RequestError("this model is not loaded and unloaded here", param="model")
