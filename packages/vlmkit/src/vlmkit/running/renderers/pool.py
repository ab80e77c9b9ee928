"""All renderers of a model: who is free, who is late, and who takes the place of one that ended.

A request that finds none free waits in the thread that asks, in order. One that ends costs the
request that it worked for, and no other.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence as Seq
from typing import Self

from vlmkit.errors import PromptNotMade, VlmkitError
from vlmkit.running.inbox import closing
from vlmkit.running.media_room import Place
from vlmkit.running.prompts import Made
from vlmkit.running.renderers.renderer import Renderer
from vlmkit.running.renderers.wire import Frame

log = logging.getLogger(__name__)

LOOK_S = 0.2
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0


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
        self._has_free = threading.Condition(self._lock)
        self._all: set[Renderer] = set()
        self._free: deque[Renderer] = deque()
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

    def made(self, frame: Frame, place: Place) -> Made:
        """Return what a renderer makes of a request.

        Raises:
            VlmkitError: what was raised there.
            PromptNotMade: none was free in time, or the one that was ended.
        """
        renderer = self._taken()
        try:
            made = renderer.made(frame, place)
        except PromptNotMade:
            self.num_lost += 1
            self._replace(renderer)
            raise
        except BaseException:
            self._put_back(renderer)
            raise
        self._pause_s = MIN_PAUSE_S
        self._put_back(renderer)
        return made

    def close(self) -> None:
        """End all of them; harmless when done twice."""
        self._is_closed.set()
        with self._lock:
            ended, self._all = self._all, set()
            self._has_free.notify_all()
        for renderer in ended:
            renderer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _taken(self) -> Renderer:
        """Return one that is free; who waits longest gets the first."""
        with self._lock:
            is_there = self._has_free.wait_for(
                lambda: self._free or self._is_closed.is_set(), self._timeout_s
            )
            if self._is_closed.is_set():
                raise closing()
            if not is_there:
                raise PromptNotMade("no renderer was free in time")
            return self._free.popleft()

    def _put_back(self, renderer: Renderer) -> None:
        with self._lock:
            self._free.append(renderer)
            self._has_free.notify()

    def _look(self) -> None:
        """End what is late or not wanted any more, and replace what ended while it was free."""
        while not self._is_closed.wait(LOOK_S):
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
        raise closing()

    def _replace(self, renderer: Renderer) -> None:
        """Have another one started, beside whoever asks."""
        with self._lock:
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
