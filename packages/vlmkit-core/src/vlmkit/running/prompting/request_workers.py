"""Where requests are prepared: worker threads that tenants share, and memory for their images.

No request holds memory while it waits for a thread, nor does it wait for memory in a thread that
one with memory needs: either would stop all preparation. A request without files knows its images:
it first gets the memory, and then a thread on which nothing waits for memory. A request with files
first gets a thread of those for files, and waits for memory there, since it learns from the opened
files how much it needs.

Knows no prompt and no engine. A request that is cancelled, by cancelling its call here or by
closing this, leaves the queue, or stops at the next place where it checks.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from vlmkit.errors import RequestCancelled
from vlmkit.image_files.file_type import is_image
from vlmkit.running.faults.engine_errors import closing_error
from vlmkit.running.prompting.prompt_builder import is_constrained, is_short
from vlmkit.running.scheduling.decode_memory import (
    DecodeLease,
    DecodeMemoryLimiter,
    check_num_pixels,
    needed,
)
from vlmkit.running.scheduling.fair_executor import FairExecutor
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.media import FilePart
from vlmkit.types.message import parts_of
from vlmkit.types.request import Request

T = TypeVar("T")

NUM_TEXT_WORKERS = 2  # threads for short texts, which take milliseconds
NUM_CONSTRAINT_WORKERS = 2  # for short texts with a constraint, which may take seconds to try


class RequestWorkers:
    """Runs the preparation of requests.

    Args:
        bounds: of the pipeline.
        num_renderers: for each of them a thread waits.

    Attributes:
        workers: threads for requests with images or long texts.
        is_closed: whether no request is prepared any more.
    """

    def __init__(self, bounds: PipelineSettings, num_renderers: int) -> None:
        num_workers = bounds.num_workers + num_renderers
        most_each = max(1, num_workers - 1)  # one thread is left to the other tenants
        self.workers = FairExecutor(num_workers, "vlmkit-prompt", most_each)
        self._file_workers = FairExecutor(num_workers, "vlmkit-file", most_each)
        self.is_closed = False
        self._text_workers = FairExecutor(NUM_TEXT_WORKERS, "vlmkit-text")
        # A tenant has one: trials of constraints take whole processors from all answers.
        self._constraint_workers = FairExecutor(NUM_CONSTRAINT_WORKERS, "vlmkit-constraint", 1)
        self._room = DecodeMemoryLimiter(bounds.max_decoding_bytes, bounds.max_prepared_bytes)
        self._bounds = bounds
        self._timeout_s = bounds.prepare_timeout_s
        self._present: set[DecodeLease] = set()

    def here(self, work: Callable[[Request, DecodeLease], T], request: Request) -> T:
        """Run a function in this thread when there is room for a request's images.

        Raises:
            ImageError: the images have too many pixels together.
            OutOfMemory: there was none in time.
            EngineError: this was closed meanwhile.
        """
        num_bytes = self._first_bytes(request)
        place = self._room.ask(_tenant(request), 0)
        self._present.add(place)
        try:
            place.enlarge(num_bytes, self._timeout_s)
            return work(request, place)
        except RequestCancelled as error:
            raise closing_error() from error
        finally:
            self._leave(place)

    async def in_worker(
        self,
        work: Callable[[Request, DecodeLease], T],
        request: Request,
        drop: Callable[[T], None] | None = None,
    ) -> T:
        """Run a function in a worker thread when there is room for a request's images.

        Tenants share the threads. Short texts have threads of their own, and so have short texts
        with a constraint. Cancelling this call cancels the request.

        Args:
            work: gets the request and its place, whose cancellation it obeys.
            request: what is asked.
            drop: gets the result if the request was cancelled too late.

        Raises:
            ImageError: the images have too many pixels together.
            OutOfMemory: there was none in time.
            EngineError: this is closed.
        """
        num_bytes = self._first_bytes(request)
        workers = self._workers_for(request)
        place = self._room.ask(_tenant(request), 0 if workers is self._file_workers else num_bytes)
        self._present.add(place)
        try:
            await place.awaited(self._timeout_s)
            run = partial(self._run, work, request, place, num_bytes)
            future = workers.submit(place.tenant, run)
        except RuntimeError as error:  # the workers are gone
            self._leave(place)
            raise closing_error() from error
        except BaseException:
            self._leave(place)
            raise
        future.add_done_callback(partial(self._leave, place))
        try:
            return await asyncio.wrap_future(future)
        except RequestCancelled as error:  # by close()
            raise closing_error() from error
        except asyncio.CancelledError:
            future.cancel()
            place.cancellation.cancel()
            if drop is not None:
                future.add_done_callback(partial(_drop_result, drop))
            raise

    def close(self) -> None:
        """Cancel all requests; those that wait for a thread are refused when their turn comes."""
        self.is_closed = True
        for workers in (
            self.workers,
            self._file_workers,
            self._text_workers,
            self._constraint_workers,
        ):
            workers.shutdown()
        for place in self._present.copy():
            place.cancellation.cancel()

    def _workers_for(self, request: Request) -> FairExecutor:
        if _files_of(request):
            return self._file_workers
        if not is_short(request):
            return self.workers
        return self._constraint_workers if is_constrained(request) else self._text_workers

    def _first_bytes(self, request: Request) -> int:
        """Return the memory that a request needs before its files are opened.

        Of an image in a file nothing is known then, and it may be opened in a renderer, so it is
        decoded alone.
        """
        images, most = request.decoded_images, self._bounds.max_decoding_bytes
        check_num_pixels(images, self._bounds.max_decoding_pixels)
        num_bytes = needed(images, most).num_bytes
        if not request.options.light and any(is_image(file.data) for file in _files_of(request)):
            num_bytes = max(num_bytes, most)
        return num_bytes

    def _run(
        self,
        work: Callable[[Request, DecodeLease], T],
        request: Request,
        place: DecodeLease,
        num_bytes: int,
    ) -> T:
        if self.is_closed:
            raise closing_error()
        place.enlarge(num_bytes, self._timeout_s)
        return work(request, place)

    def _leave(self, place: DecodeLease, _: object = None) -> None:
        self._present.discard(place)
        place.leave()


def _tenant(request: Request) -> str:
    return request.account or request.tenant


def _files_of(request: Request) -> list[FilePart]:
    return [part for part in parts_of(request.messages) if isinstance(part, FilePart)]


def _drop_result(drop: Callable[[T], None], future: Future[T]) -> None:
    """Hand over a result that came too late."""
    if not future.cancelled() and future.exception() is None:
        drop(future.result())
