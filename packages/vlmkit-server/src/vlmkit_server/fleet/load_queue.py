"""The models that wait to be loaded: one at a time, in their order, as soon as there is room.

Knows nothing of requests. Is called in the event loop's thread; what blocks is done in another.
"""

import logging
import time
from asyncio import Future
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

from vlmkit.interfaces.runner import Runner
from vlmkit_server.fleet.load_failure import log_failure, too_large
from vlmkit_server.fleet.load_thread import LoadThread
from vlmkit_server.fleet.load_watch import LoadWatch
from vlmkit_server.fleet.model_handle import ModelHandle

log = logging.getLogger(__name__)

OnReady = Callable[[ModelHandle, Runner], None]
OnFailure = Callable[[ModelHandle, BaseException], None]


class LoadQueue:
    """Loads and closes models.

    Args:
        models: all that take memory.
        budget_bytes: how much they may take together.
        thread: where it is done.
        on_ready: told of each model that was loaded.
        on_failed: told of each that could not be.
        on_stuck: told of each that could not be closed, and keeps its memory.
        watch: told of each load.
    """

    def __init__(
        self,
        models: Collection[ModelHandle],
        budget_bytes: int | None,
        thread: LoadThread,
        on_ready: OnReady,
        on_failed: OnFailure,
        on_stuck: OnFailure,
        watch: LoadWatch,
    ) -> None:
        self._models = models
        self._budget_bytes = budget_bytes
        self._thread = thread
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._on_stuck = on_stuck
        self._watch = watch
        self._waiting: list[ModelHandle] = []
        self._is_busy = False

    def want(self, model: ModelHandle) -> None:
        """Let a model wait for its turn; who wants it is noted in the model."""
        model.want()
        self._waiting.append(model)
        self.settle()

    def leave(self, model: ModelHandle) -> None:
        """Unload a model when its last request has ended."""
        log.info("unloading model %r", model.name)
        model.leave()
        self.settle()

    def settle(self) -> None:
        """Do what can be done now; to be called whenever requests came, went or gave up."""
        for model in tuple(self._waiting):
            if not model.num_waiting and not model.is_wanted:
                self._waiting.remove(model)
                model.forget()
        for model in self._models:
            self._close_if_left(model)
        for model in tuple(self._waiting):
            if self._is_busy or not self._lets_pass(model):
                return

    def _lets_pass(self, model: ModelHandle) -> bool:
        """Do the next thing for a model that waits; tell whether those behind it may come first."""
        if model.not_before_s > time.monotonic():
            return True
        budget = self._budget_bytes
        weigh = model.offer.weigh
        if budget is not None and model.memory_bytes is None and weigh is not None:
            self._is_busy = True
            self._thread.run(weigh).add_done_callback(partial(self._weighed, model))
            return False
        if budget is not None and (model.memory_bytes or 0) > budget:
            self._waiting.remove(model)
            self._fail(model, too_large(model.name, model.memory_bytes or 0, budget))
            return True
        room = room_for(model, self._models, budget)
        if room.is_there:
            self._load(model)
            return False
        for leaver in room.leavers:
            log.info("unloading model %r to make room for %r", leaver.name, model.name)
            leaver.leave()
            self._close_if_left(leaver)
        return not room.is_coming

    def _weighed(self, model: ModelHandle, future: "Future[int | BaseException]") -> None:
        self._is_busy = False
        result = future.result()
        if isinstance(result, int):
            model.memory_bytes = result
        elif model in self._waiting:
            self._waiting.remove(model)
            self._fail(model, result)
        self.settle()

    def _load(self, model: ModelHandle) -> None:
        if (load := model.offer.load) is None:
            raise RuntimeError("what cannot be loaded never waits for it")
        self._waiting.remove(model)
        self._is_busy = True
        model.start()
        self._watch.begin(model.name)
        self._thread.load(load).add_done_callback(partial(self._loaded, model))

    def _loaded(self, model: ModelHandle, future: "Future[Runner | BaseException]") -> None:
        self._is_busy = False
        self._watch.end()
        result = future.result()
        if isinstance(result, BaseException):
            self._fail(model, result)
        else:
            self._on_ready(model, result)
        self.settle()

    def _fail(self, model: ModelHandle, error: BaseException) -> None:
        log_failure(model.name, error)
        model.fail(error)
        self._on_failed(model, error)

    def _close_if_left(self, model: ModelHandle) -> None:
        """Close a model that leaves and that nobody uses any more."""
        if model.state != "unloading" or model.num_users:
            return
        if (runner := model.retire()) is not None:
            future = self._thread.unload(runner)
            future.add_done_callback(partial(self._closed, model))

    def _closed(self, model: ModelHandle, future: "Future[BaseException | None]") -> None:
        if (error := future.result()) is not None:
            self._on_stuck(model, error)
        else:
            log.info("model %r is unloaded", model.name)
        model.forget()
        if model.is_wanted:
            self.want(model)
        self.settle()


@dataclass(frozen=True)
class Room:
    """What must happen before a model can be loaded.

    Attributes:
        is_there: nothing must.
        is_coming: those who leave, or already do, make enough room.
        leavers: idle models that are to leave, the one that was asked least recently first.
    """

    is_there: bool = False
    is_coming: bool = False
    leavers: tuple[ModelHandle, ...] = ()


def room_for(model: ModelHandle, models: Iterable[ModelHandle], budget_bytes: int | None) -> Room:
    """Find room; nobody leaves in vain, and no model that has anything to do."""
    if budget_bytes is None:
        return Room(is_there=True)
    inside = [each for each in models if each.is_in_memory]
    lacking = _bytes(model, *inside) - budget_bytes
    if lacking <= 0:
        return Room(is_there=True)
    lacking -= _bytes(*(each for each in inside if each.state == "unloading"))
    leavers = []
    for each in sorted(inside, key=lambda each: each.last_used_s):
        if lacking > 0 and each.is_idle:
            leavers.append(each)
            lacking -= _bytes(each)
    return Room() if lacking > 0 else Room(is_coming=True, leavers=tuple(leavers))


def _bytes(*models: ModelHandle) -> int:
    return sum(each.memory_bytes or 0 for each in models)
