"""All renderers of a model: who is free, who is late, and who takes the place of one that ended.

A request that finds none free waits in the thread that asks; tenants take turns. One that ends
costs the request that it worked for, and no other. A request that is cancelled is cancelled in its
renderer, too, which is killed if that does not end it at once.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence as Seq
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Self

from vlmkit.errors import PromptNotMade, VlmkitError
from vlmkit.running.faults.engine_errors import closing_error
from vlmkit.running.prompting.prompt_builder import BuiltPrompt
from vlmkit.running.prompting.renderers.messages import Frame
from vlmkit.running.prompting.renderers.process import Renderer
from vlmkit.running.scheduling.decode_memory import DecodeLease
from vlmkit.running.scheduling.fair_executor import FairTaskQueue

log = logging.getLogger(__name__)

LOOK_S = 0.1
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0


@dataclass(eq=False, slots=True)
class _Turn:
    """A request that waits for a renderer."""

    tenant: str
    granted: Future[Renderer] = field(default_factory=Future)


class RendererPool:
    """Starts renderers, and returns when all are ready.

    Args:
        plan: what each is to build.
        num: how many.
        timeout_s: for one prompt, and for waiting for a free one.

    Attributes:
        num: how many there are.
        num_lost: those that ended, or were ended, while they worked.

    Raises:
        VlmkitError: they cannot build what they need.
    """

    def __init__(self, plan: Frame, num: int, timeout_s: float) -> None:
        self.num = num
        self._plan = plan
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._all: set[Renderer] = set()
        self._free: deque[Renderer] = deque()
        self._waiting: FairTaskQueue[_Turn] = FairTaskQueue()
        self._has_cancelled = threading.Event()
        self._pause_s = MIN_PAUSE_S
        self._is_closed = threading.Event()
        self.num_lost = 0
        try:
            for renderer in [self._started() for _ in range(num)]:
                renderer.wait()
                self._put_back(renderer)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._look, name="vlmkit-renderers", daemon=True).start()

    @property
    def pids(self) -> Seq[int]:
        """The processes."""
        with self._lock:
            return [renderer.pid for renderer in self._all]

    @property
    def has_free(self) -> bool:
        """Whether a renderer waits for work."""
        return bool(self._free)

    def made(self, frame: Frame, place: DecodeLease) -> BuiltPrompt:
        """Return what a renderer makes of a request.

        Raises:
            VlmkitError: what was raised there.
            RequestCancelled: the request was cancelled.
            PromptNotMade: none was free in time, or the one that was ended.
        """
        with place.cancellation.calling(self._has_cancelled.set):
            renderer = self._taken(place)
            try:
                made = renderer.made(frame, place)
            except PromptNotMade:
                self.num_lost += 1
                self._replace(renderer, place)
                place.cancellation.check()
                raise
            except BaseException:
                self._put_back(renderer, place)
                raise
            self._pause_s = MIN_PAUSE_S
            self._put_back(renderer, place)
            return made

    def close(self) -> None:
        """End all of them; harmless when done twice."""
        self._is_closed.set()
        with self._lock:
            ended, self._all = self._all, set()
            while (turn := self._waiting.start()) is not None:
                turn.granted.cancel()
                self._waiting.finish(turn.tenant)
        for renderer in ended:
            renderer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _taken(self, place: DecodeLease) -> Renderer:
        """Return a free renderer, in the turn of the request's tenant.

        Raises:
            RequestCancelled: the request was cancelled.
            PromptNotMade: none was free in time.
            EngineError: the pool is closed.
        """
        turn = _Turn(place.tenant)
        with self._lock:
            if self._is_closed.is_set():
                raise closing_error()
            self._waiting.put(turn.tenant, turn)
            self._hand_out()
        try:
            with place.cancellation.calling(turn.granted.cancel):
                return turn.granted.result(self._timeout_s)
        except TimeoutError:
            if not turn.granted.cancel():
                return turn.granted.result()
            raise PromptNotMade("no renderer was free in time") from None
        except CancelledError:
            place.cancellation.check()
            raise closing_error() from None
        finally:
            if turn.granted.cancelled():
                with self._lock:
                    self._waiting.remove(turn.tenant, turn)

    def _hand_out(self) -> None:
        """Give free renderers to the requests whose turn it is; the lock is held."""
        while self._free and (turn := self._waiting.start()) is not None:
            if turn.granted.set_running_or_notify_cancel():
                turn.granted.set_result(self._free.popleft())
            else:
                self._waiting.finish(turn.tenant)

    def _put_back(self, renderer: Renderer, place: DecodeLease | None = None) -> None:
        with self._lock:
            if place is not None:
                self._waiting.finish(place.tenant)
            self._free.append(renderer)
            self._hand_out()

    def _look(self) -> None:
        """End what is late or not wanted any more, and replace what ended while it was free."""
        while not self._is_closed.is_set():
            self._has_cancelled.wait(LOOK_S)
            self._has_cancelled.clear()
            with self._lock:
                ended = [renderer for renderer in self._free if not renderer.is_alive]
                for renderer in ended:
                    self._free.remove(renderer)
                others = self._all.difference(ended)
            for renderer in ended:
                self._replace(renderer)
            for renderer in others:
                renderer.look()

    def _started(self) -> Renderer:
        renderer = Renderer(self._plan, self._timeout_s)
        with self._lock:
            if not self._is_closed.is_set():
                self._all.add(renderer)
                return renderer
        renderer.close()
        raise closing_error()

    def _replace(self, renderer: Renderer, place: DecodeLease | None = None) -> None:
        """Start another one in the background, in the place of one that ended."""
        with self._lock:
            if place is not None:
                self._waiting.finish(place.tenant)
            self._all.discard(renderer)
        renderer.close()
        if not self._is_closed.is_set():
            log.warning("a renderer ended; another is started")
            threading.Thread(target=self._start_again, name="vlmkit-renderer", daemon=True).start()

    def _start_again(self) -> None:
        while not self._is_closed.wait(self._pause_s):
            self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)
            try:
                renderer = self._started()
                renderer.wait()
            except VlmkitError as error:
                if not self._is_closed.is_set():
                    log.warning("a renderer could not be started: %s", error)
                continue
            self._put_back(renderer)
            return
