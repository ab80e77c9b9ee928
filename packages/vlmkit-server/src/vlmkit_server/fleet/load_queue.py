"""Loads waiting models: one at a time, in order, as soon as they fit into the memory budget.

It does not depend on requests. It is used in the event loop's thread; another thread does the work.
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
        models: all models that take memory.
        budget_bytes: the memory budget of all models.
        thread: runs the blocking work.
        on_ready: called with each loaded model.
        on_failed: called with each model that could not be loaded.
        on_stuck: called with each model that could not be closed, and keeps its memory.
        watch: notified of each load.
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

    def enqueue(self, model: ModelHandle) -> None:
        """Queue a model; its requests and ``is_wanted`` keep it in the queue."""
        model.mark_waiting()
        self._waiting.append(model)
        self.advance()

    def unload(self, model: ModelHandle) -> None:
        """Unload a model once its last request has ended."""
        log.info("unloading model %r", model.name)
        model.mark_unloading()
        self.advance()

    def advance(self) -> None:
        """Do what is possible now; to be called whenever requests start, end or give up."""
        for model in tuple(self._waiting):
            if not model.num_waiting and not model.is_wanted:
                self._waiting.remove(model)
                model.mark_unloaded()
        for model in self._models:
            self._close_if_unused(model)
        for model in tuple(self._waiting):
            if self._is_busy or not self._may_overtake(model):
                return

    def _may_overtake(self, model: ModelHandle) -> bool:
        """Do the next step of a waiting model; tell whether later ones may come first."""
        if model.not_before_s > time.monotonic():
            return True
        budget = self._budget_bytes
        weigh = model.spec.weigh
        if budget is not None and model.memory_bytes is None and weigh is not None:
            self._is_busy = True
            self._thread.run(weigh).add_done_callback(partial(self._weighed, model))
            return False
        if budget is not None and (model.memory_bytes or 0) > budget:
            self._waiting.remove(model)
            self._fail(model, too_large(model.name, model.memory_bytes or 0, budget))
            return True
        plan = plan_eviction(model, self._models, budget)
        if plan.fits:
            self._load(model)
            return False
        for victim in plan.victims:
            log.info("unloading model %r to make room for %r", victim.name, model.name)
            victim.mark_unloading()
            self._close_if_unused(victim)
        return not plan.will_fit

    def _weighed(self, model: ModelHandle, future: "Future[int | BaseException]") -> None:
        self._is_busy = False
        result = future.result()
        if isinstance(result, int):
            model.memory_bytes = result
        elif model in self._waiting:
            self._waiting.remove(model)
            self._fail(model, result)
        self.advance()

    def _load(self, model: ModelHandle) -> None:
        if (load := model.spec.load) is None:
            raise RuntimeError("a model without a loader never waits to be loaded")
        self._waiting.remove(model)
        self._is_busy = True
        model.mark_loading()
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
        self.advance()

    def _fail(self, model: ModelHandle, error: BaseException) -> None:
        log_failure(model.name, error)
        model.mark_failed(error)
        self._on_failed(model, error)

    def _close_if_unused(self, model: ModelHandle) -> None:
        """Close a model that is being unloaded, once it has no users."""
        if not model.is_unloading or model.num_users:
            return
        if (runner := model.detach_runner()) is not None:
            future = self._thread.unload(runner)
            future.add_done_callback(partial(self._closed, model))

    def _closed(self, model: ModelHandle, future: "Future[BaseException | None]") -> None:
        if (error := future.result()) is not None:
            self._on_stuck(model, error)
        else:
            log.info("model %r unloaded", model.name)
        model.mark_unloaded()
        if model.is_wanted:
            self.enqueue(model)
        self.advance()


@dataclass(frozen=True)
class EvictionPlan:
    """What must happen before a model can be loaded.

    Attributes:
        fits: nothing: the model fits now.
        will_fit: the model fits once the victims, and models that are being unloaded, are gone.
        victims: idle models to unload, the least recently used first.
    """

    fits: bool = False
    will_fit: bool = False
    victims: tuple[ModelHandle, ...] = ()


def plan_eviction(
    model: ModelHandle, models: Iterable[ModelHandle], budget_bytes: int | None
) -> EvictionPlan:
    """Plan evictions; only idle models are evicted, and only if the model then fits."""
    if budget_bytes is None:
        return EvictionPlan(fits=True)
    loaded = [each for each in models if each.is_in_memory]
    lacking = _bytes(model, *loaded) - budget_bytes
    if lacking <= 0:
        return EvictionPlan(fits=True)
    lacking -= _bytes(*(each for each in loaded if each.state == "unloading"))
    victims = []
    for each in sorted(loaded, key=lambda each: each.last_used_s):
        if lacking > 0 and each.is_idle:
            victims.append(each)
            lacking -= _bytes(each)
    return EvictionPlan() if lacking > 0 else EvictionPlan(will_fit=True, victims=tuple(victims))


def _bytes(*models: ModelHandle) -> int:
    return sum(each.memory_bytes or 0 for each in models)
