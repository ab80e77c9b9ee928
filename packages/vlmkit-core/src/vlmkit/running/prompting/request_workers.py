"""Worker threads that prepare requests, and the memory that the images of requests lease.

Tenants share both fairly. To avoid a deadlock, no request with a lease waits for a thread in which
another request waits for a lease:

- A request without files knows its images. It leases memory first, and then gets a thread in which
  no request waits for memory.
- A request with files first gets a file thread, and waits for memory there: only the opened files
  show how much it needs.

A request is cancelled by cancelling its call or by closing the workers. It then leaves the queue,
or stops at its next check. The module knows no prompt and no engine.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

from vlmkit.errors import RequestCancelled
from vlmkit.image_files.file_type import is_image
from vlmkit.running.faults.engine_errors import closing_error
from vlmkit.running.prompting.prepared_images import LARGE_BYTES, PreparedImages
from vlmkit.running.scheduling.decode_memory import (
    DecodeLease,
    DecodeMemoryLimiter,
    check_num_pixels,
    memory_needed,
)
from vlmkit.running.scheduling.fair_executor import FairExecutor
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.media import FilePart
from vlmkit.types.message import ReasoningPart, TextPart, parts_of
from vlmkit.types.request import Request
from vlmkit.types.tool_call import ToolCallPart

T = TypeVar("T")

MAX_SHORT_CHARS = 2**14  # are tokenized in milliseconds
NUM_TEXT_WORKERS = 2  # threads for short texts, which take milliseconds
NUM_CONSTRAINT_WORKERS = 2  # for short texts with a constraint, whose trial may take seconds


class RequestWorkers:
    """Runs the preparation of requests.

    Args:
        bounds: the settings of the pipeline.
        num_renderers: the number of renderers; one more thread waits for each.
        images: the images that earlier requests prepared; these need no memory.

    Attributes:
        workers: threads for requests with images or long texts.
        is_closed: whether the workers accept no more requests.
    """

    def __init__(
        self, bounds: PipelineSettings, num_renderers: int, images: PreparedImages
    ) -> None:
        num_workers = bounds.num_workers + num_renderers
        max_running = max(1, num_workers - 1)  # one thread is reserved for other tenants
        self.workers = FairExecutor(num_workers, "vlmkit-prompt", max_running)
        self._file_workers = FairExecutor(num_workers, "vlmkit-file", max_running)
        self.is_closed = False
        self._text_workers = FairExecutor(NUM_TEXT_WORKERS, "vlmkit-text")
        # One per tenant: trials of constraints take whole processors from all answers.
        self._constraint_workers = FairExecutor(NUM_CONSTRAINT_WORKERS, "vlmkit-constraint", 1)
        self._decode_memory = DecodeMemoryLimiter(
            bounds.max_decoding_bytes, bounds.max_prepared_bytes
        )
        self._bounds = bounds
        self._images = images
        self._timeout_s = bounds.prepare_timeout_s
        self._leases: set[DecodeLease] = set()

    def in_caller(self, work: Callable[[Request, DecodeLease], T], request: Request) -> T:
        """Run a function in this thread once the request has memory for its images.

        Raises:
            ImageError: the images have too many pixels together.
            OutOfMemory: the memory is not granted in time.
            EngineError: the workers were closed meanwhile.
        """
        request = self._images.known(request)
        num_bytes = self._first_bytes(request)
        lease = self._decode_memory.lease(_tenant(request), 0)
        self._leases.add(lease)
        try:
            lease.enlarge(num_bytes, self._timeout_s)
            return work(request, lease)
        except RequestCancelled as error:
            raise closing_error() from error
        finally:
            self._release(lease)

    async def in_worker(
        self,
        work: Callable[[Request, DecodeLease], T],
        request: Request,
        discard: Callable[[T], None] | None = None,
        until: "asyncio.Future[None] | None" = None,
    ) -> T:
        """Run a function in a worker thread once the request has memory for its images.

        Tenants share the threads fairly. Short texts have threads of their own, and so have short
        texts with a constraint. Cancelling this call cancels the request.

        Args:
            work: gets the request and its lease, and must obey the lease's cancellation.
            request: the request.
            discard: gets the result if the request was cancelled too late.
            until: is awaited in place of the function's end, which spares the event loop a wake-up.
                The receiver of what the function submits resolves it; an error of the function
                does so, too.

        Raises:
            ImageError: the images have too many pixels together.
            OutOfMemory: the memory is not granted in time.
            EngineError: the workers are closed.
        """
        if self._images.num_unknown_bytes(request) > LARGE_BYTES:
            request = await asyncio.to_thread(self._images.known, request)
        else:
            request = self._images.known(request)
        workers, num_bytes = self._workers_for(request)
        lease = self._decode_memory.lease(
            _tenant(request), 0 if workers is self._file_workers else num_bytes
        )
        self._leases.add(lease)
        try:
            await lease.wait(self._timeout_s)
            run = partial(self._run, work, request, lease, num_bytes)
            future = workers.submit(lease.tenant, run)
        except RuntimeError as error:  # the workers are gone
            self._release(lease)
            raise closing_error() from error
        except BaseException:
            self._release(lease)
            raise
        future.add_done_callback(partial(self._release, lease))
        try:
            if until is not None:
                future.add_done_callback(partial(_resolve_if_failed, until))
                await until
            return future.result() if future.done() else await asyncio.wrap_future(future)
        except RequestCancelled as error:  # by close()
            raise closing_error() from error
        except asyncio.CancelledError:
            future.cancel()
            lease.cancellation.cancel()
            if discard is not None:
                future.add_done_callback(partial(drop_late_result, discard))
            raise

    def close(self) -> None:
        """Cancel all requests; those in the queue fail when a thread takes them."""
        self.is_closed = True
        for workers in (
            self.workers,
            self._file_workers,
            self._text_workers,
            self._constraint_workers,
        ):
            workers.shutdown()
        for lease in self._leases.copy():
            lease.cancellation.cancel()

    def _workers_for(self, request: Request) -> tuple[FairExecutor, int]:
        """Return the threads for a request, and the memory that it needs before files are open."""
        if is_short(request):
            is_tried = _is_constrained(request)
            return self._constraint_workers if is_tried else self._text_workers, 0
        workers = self._file_workers if _files_of(request) else self.workers
        return workers, self._first_bytes(request)

    def _first_bytes(self, request: Request) -> int:
        """Return the memory that a request needs before its files are opened.

        The cost of an image in a file is still unknown, and a renderer may open it, so the request
        leases all decode memory.
        """
        images, max_bytes = request.decoded_images, self._bounds.max_decoding_bytes
        check_num_pixels(images, self._bounds.max_decoding_pixels)
        num_bytes = memory_needed(images, max_bytes).num_bytes
        if not request.options.light and any(is_image(file.data) for file in _files_of(request)):
            num_bytes = max(num_bytes, max_bytes)
        return num_bytes

    def _run(
        self,
        work: Callable[[Request, DecodeLease], T],
        request: Request,
        lease: DecodeLease,
        num_bytes: int,
    ) -> T:
        if self.is_closed:
            raise closing_error()
        lease.enlarge(num_bytes, self._timeout_s)
        return work(request, lease)

    def _release(self, lease: DecodeLease, _: object = None) -> None:
        self._leases.discard(lease)
        lease.release()


def is_short(request: Request) -> bool:
    """Return whether a request is a short text, which is tokenized in milliseconds."""
    if request.images:
        return False
    texts = [request.text or "", *(c for c in request.continuations if isinstance(c, str))]
    for part in parts_of(request.messages):
        if isinstance(part, TextPart | ReasoningPart):
            texts.append(part.text)
        elif isinstance(part, ToolCallPart):
            texts.append(part.arguments)
        else:
            return False
    num_chars = sum(map(len, texts)) + len(msgspec.json.encode(request.tools))
    return num_chars < MAX_SHORT_CHARS


def _is_constrained(request: Request) -> bool:
    """Return whether a constraint must be compiled; tools that may be called need one."""
    may_call = bool(request.tools) and request.tool_choice != "none"
    return request.constraint is not None or may_call


def _tenant(request: Request) -> str:
    return request.account or request.tenant


def _files_of(request: Request) -> list[FilePart]:
    return [part for part in parts_of(request.messages) if isinstance(part, FilePart)]


def _resolve_if_failed(waiting: "asyncio.Future[None]", future: Future[T]) -> None:
    """Wake the waiting caller if there is no result to wait for."""
    if future.cancelled() or future.exception() is not None:
        with suppress(RuntimeError):  # the event loop is closed, and with it the caller
            waiting.get_loop().call_soon_threadsafe(_resolve, waiting)


def _resolve(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def drop_late_result(discard: Callable[[T], None], future: Future[T]) -> None:
    """Pass a result to a function that discards it; its caller no longer waits."""
    if not future.cancelled() and future.exception() is None:
        discard(future.result())
