"""The renderer pool of a model: assigns free renderers, and replaces renderers that ended.

A request that finds no free renderer blocks its thread until one is free; tenants share renderers
fairly. A renderer that ends fails the request that it worked for, and no other. A cancelled request
is cancelled in its renderer, too; the renderer is killed if that takes too long.

:class:`RendererPromptBuilder` decides which prompts renderers build. The others are built in
threads of the server.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence as Seq
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from typing import Self

from vlmkit.errors import ImageError, PromptNotMade, VlmkitError
from vlmkit.running.faults.engine_errors import closing_error
from vlmkit.running.prompting.prepared_images import prepared_images, with_prepared
from vlmkit.running.prompting.prompt_builder import BuiltPrompt, PromptBuilder
from vlmkit.running.prompting.renderers.messages import request_frame
from vlmkit.running.prompting.renderers.process import Renderer
from vlmkit.running.prompting.request_workers import is_short
from vlmkit.running.scheduling.decode_memory import DecodeLease
from vlmkit.running.scheduling.fair_executor import FairTaskQueue
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import (
    ImagePart,
    Message,
    TextPart,
    image_parts_of,
    images_of,
    parts_of,
)
from vlmkit.types.request import Request
from vlmkit.wire.buffers import NotSerializable
from vlmkit.wire.frames import Frame

log = logging.getLogger(__name__)

POLL_S = 0.1
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that waits for a renderer."""

    tenant: str
    granted: Future[Renderer] = field(default_factory=Future)


class RendererPool:
    """The renderers of a model; constructed when all are ready.

    Args:
        plan: the text side that each renderer builds.
        num: the number of renderers.
        timeout_s: time for one prompt, and time to wait for a free renderer.

    Attributes:
        num: the number of renderers.
        num_lost: renderers that ended or were killed while they worked.

    Raises:
        VlmkitError: the renderers cannot build their text side.
    """

    def __init__(self, plan: Frame, num: int, timeout_s: float) -> None:
        self.num = num
        self._plan = plan
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._all: set[Renderer] = set()
        self._free: deque[Renderer] = deque()
        self._waiting: FairTaskQueue[_Waiter] = FairTaskQueue()
        self._has_cancelled = threading.Event()
        self._pause_s = MIN_PAUSE_S
        self._is_closed = threading.Event()
        self.num_lost = 0
        try:
            for renderer in [self._spawn() for _ in range(num)]:
                renderer.wait()
                self._release(renderer)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._supervise, name="vlmkit-renderers", daemon=True).start()

    @property
    def pids(self) -> Seq[int]:
        """The process ids of all renderers."""
        with self._lock:
            return [renderer.pid for renderer in self._all]

    @property
    def has_free(self) -> bool:
        """Whether a renderer is free."""
        return bool(self._free)

    def build(self, frame: Frame, lease: DecodeLease) -> BuiltPrompt:
        """Have a renderer build the prompt of a request.

        Raises:
            VlmkitError: the error that the renderer raised.
            RequestCancelled: the request was cancelled.
            PromptNotMade: no renderer was free in time, or the renderer ended.
        """
        with lease.cancellation.calling(self._has_cancelled.set):
            renderer = self._acquire(lease)
            try:
                made = renderer.build(frame, lease)
            except PromptNotMade:
                self.num_lost += 1
                self._replace(renderer, lease)
                lease.cancellation.check()
                raise
            except BaseException:
                self._release(renderer, lease)
                raise
            self._pause_s = MIN_PAUSE_S
            self._release(renderer, lease)
            return made

    def close(self) -> None:
        """End all renderers; harmless when done twice."""
        self._is_closed.set()
        with self._lock:
            ended, self._all = self._all, set()
            while (waiter := self._waiting.start()) is not None:
                waiter.granted.cancel()
                self._waiting.finish(waiter.tenant)
        for renderer in ended:
            renderer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _acquire(self, lease: DecodeLease) -> Renderer:
        """Wait for a free renderer, fairly among tenants, and return it.

        Raises:
            RequestCancelled: the request was cancelled.
            PromptNotMade: no renderer was free in time.
            EngineError: the pool is closed.
        """
        waiter = _Waiter(lease.tenant)
        with self._lock:
            if self._is_closed.is_set():
                raise closing_error()
            self._waiting.put(waiter.tenant, waiter)
            self._assign_free()
        try:
            with lease.cancellation.calling(waiter.granted.cancel):
                return waiter.granted.result(self._timeout_s)
        except TimeoutError:
            if not waiter.granted.cancel():
                return waiter.granted.result()
            raise PromptNotMade("no renderer was free in time") from None
        except CancelledError:
            lease.cancellation.check()
            raise closing_error() from None
        finally:
            if waiter.granted.cancelled():
                with self._lock:
                    self._waiting.remove(waiter.tenant, waiter)

    def _assign_free(self) -> None:
        """Assign free renderers to the next waiters; the caller holds the lock."""
        while self._free and (waiter := self._waiting.start()) is not None:
            if waiter.granted.set_running_or_notify_cancel():
                waiter.granted.set_result(self._free.popleft())
            else:
                self._waiting.finish(waiter.tenant)

    def _release(self, renderer: Renderer, lease: DecodeLease | None = None) -> None:
        with self._lock:
            if lease is not None:
                self._waiting.finish(lease.tenant)
            self._free.append(renderer)
            self._assign_free()

    def _supervise(self) -> None:
        """Enforce deadlines and cancellations, and replace renderers that ended while free."""
        while not self._is_closed.is_set():
            self._has_cancelled.wait(POLL_S)
            self._has_cancelled.clear()
            with self._lock:
                ended = [renderer for renderer in self._free if not renderer.is_alive]
                for renderer in ended:
                    self._free.remove(renderer)
                others = self._all.difference(ended)
            for renderer in ended:
                self._replace(renderer)
            for renderer in others:
                renderer.check_deadline()

    def _spawn(self) -> Renderer:
        renderer = Renderer(self._plan, self._timeout_s)
        with self._lock:
            if not self._is_closed.is_set():
                self._all.add(renderer)
                return renderer
        renderer.close()
        raise closing_error()

    def _replace(self, renderer: Renderer, lease: DecodeLease | None = None) -> None:
        """Start another renderer in the background, in place of one that ended."""
        with self._lock:
            if lease is not None:
                self._waiting.finish(lease.tenant)
            self._all.discard(renderer)
        renderer.close()
        if not self._is_closed.is_set():
            log.warning("a renderer ended; another is started")
            threading.Thread(target=self._respawn, name="vlmkit-renderer", daemon=True).start()

    def _respawn(self) -> None:
        while not self._is_closed.wait(self._pause_s):
            self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)
            try:
                renderer = self._spawn()
                renderer.wait()
            except VlmkitError as error:
                if not self._is_closed.is_set():
                    log.warning("a renderer could not be started: %s", error)
                continue
            self._release(renderer)
            return


class RendererPromptBuilder:
    """Has renderers build prompts with media or long texts.

    A long text is built in this process when no renderer is free, so it never waits for documents.

    Args:
        local: builds all other prompts, in threads of this process.
        pool: the renderers.
    """

    def __init__(self, local: PromptBuilder, pool: RendererPool) -> None:
        self._local = local
        self._pool = pool

    def build(self, request: Request, lease: DecodeLease) -> BuiltPrompt:
        """Return a request's prompt; arguments and errors are those of the local builder.

        Raises:
            PromptNotMade: the renderer ended, or none was free in time.
        """
        if any(image.prepared for image in images_of(request.messages)):
            return self._with_prepared_images(request, lease)
        has_media = _has_media(request)
        if not has_media and (is_short(request) or not self._pool.has_free):
            return self._local.build(request, lease)
        try:
            frame = request_frame(request)
        except NotSerializable:
            return self._local.build(request, lease)
        return self._pool.build(frame, lease)

    def _with_prepared_images(self, request: Request, lease: DecodeLease) -> BuiltPrompt:
        """Return the prompt of a request with prepared images; a renderer prepares the others."""
        parts = list(image_parts_of(request.messages))
        places = [i for i, part in enumerate(parts) if part.image.prepared is None]
        if not places:
            return self._local.build(request, lease)
        question = Message("user", (*(parts[i] for i in places), TextPart("?")))
        try:
            made = self._pool.build(request_frame(Request(messages=[question])), lease)
        except ImageError as error:
            if error.index is not None:
                error.index = places[error.index]
            raise
        prepared = [part.image.prepared for part in parts]
        others = prepared_images(made.prompt, images_of(made.messages))
        for place, other in zip(places, others, strict=True):
            prepared[place] = other
        if not all(prepared):
            raise PromptNotMade("the tokenizer can use only some images again")
        messages = with_prepared(request.messages, prepared)
        built = self._local.build(replace(request, messages=messages), lease)
        decodes = {places[number]: stage for number, stage in made.decodes.items()}
        return built._replace(decodes=decodes)


def _has_media(request: Request) -> bool:
    """Return whether a request has media that renderers can open."""
    if request.options.light:
        return False
    parts = list(parts_of(request.messages))
    if any(isinstance(part, MediaPart) for part in parts):
        return False  # media of plugins cannot be serialized
    return bool(request.images) or any(isinstance(part, ImagePart | FilePart) for part in parts)
