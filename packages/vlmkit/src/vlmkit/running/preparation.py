"""Where requests are prepared: worker threads that tenants share, and memory for their images.

Knows no prompt and no engine. A request that is cancelled, by cancelling its call here or by
closing this, leaves the queue, or stops at the next place where it checks.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from vlmkit.ask.file_type import is_image
from vlmkit.ask.media import FilePart
from vlmkit.ask.message import parts_of
from vlmkit.ask.request import Request
from vlmkit.errors import RequestCancelled
from vlmkit.running.fair_executor import FairExecutor
from vlmkit.running.inbox import closing
from vlmkit.running.media_room import MediaRoom, Place, check_num_pixels, needed
from vlmkit.running.prompts import is_constrained, is_short
from vlmkit.settings.pipeline import PipelineSettings

T = TypeVar("T")

NUM_TEXT_WORKERS = 2  # threads for short texts, which take milliseconds
NUM_CONSTRAINT_WORKERS = 2  # for short texts with a constraint, which may take seconds to try


class Preparation:
    """Runs the preparation of requests.

    Args:
        bounds: of the pipeline.
        num_renderers: for each of them a thread waits.

    Attributes:
        workers: threads for requests with media or long texts.
        is_closed: whether no request is prepared any more.
    """

    def __init__(self, bounds: PipelineSettings, num_renderers: int) -> None:
        num_workers = bounds.num_workers + num_renderers
        most_each = max(1, num_workers - 1)  # one thread is left to the other tenants
        self.workers = FairExecutor(num_workers, "vlmkit-prompt", most_each)
        self.is_closed = False
        self._text_workers = FairExecutor(NUM_TEXT_WORKERS, "vlmkit-text")
        # A tenant has one: trials of constraints take whole processors from all answers.
        self._constraint_workers = FairExecutor(NUM_CONSTRAINT_WORKERS, "vlmkit-constraint", 1)
        self._room = MediaRoom(bounds.max_decoding_bytes, bounds.max_prepared_bytes)
        self._bounds = bounds
        self._timeout_s = bounds.prepare_timeout_s
        self._present: set[Place] = set()

    def here(self, work: Callable[[Request, Place], T], request: Request) -> T:
        """Run a function in this thread when there is room for a request's images.

        Raises:
            ImageError: the images have too many pixels together.
            OutOfMemory: there was none in time.
            EngineError: this was closed meanwhile.
        """
        place = self._ask(request)
        self._present.add(place)
        try:
            place.wait(self._timeout_s)
            return work(request, place)
        except RequestCancelled as error:
            raise closing() from error
        finally:
            self._leave(place)

    async def in_worker(
        self,
        work: Callable[[Request, Place], T],
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
        place = self._ask(request)
        workers = self._workers_for(request)
        self._present.add(place)
        try:
            await place.awaited(self._timeout_s)
            future = workers.submit(place.tenant, partial(self._run, work, request, place))
        except RuntimeError as error:  # the workers are gone
            self._leave(place)
            raise closing() from error
        except BaseException:
            self._leave(place)
            raise
        future.add_done_callback(partial(self._leave, place))
        try:
            return await asyncio.wrap_future(future)
        except RequestCancelled as error:  # by close()
            raise closing() from error
        except asyncio.CancelledError:
            future.cancel()
            place.cancellation.cancel()
            if drop is not None:
                future.add_done_callback(partial(_drop_result, drop))
            raise

    def close(self) -> None:
        """Cancel all requests; those that wait for a thread are refused when their turn comes."""
        self.is_closed = True
        for workers in (self.workers, self._text_workers, self._constraint_workers):
            workers.shutdown()
        for place in self._present.copy():
            place.cancellation.cancel()

    def _workers_for(self, request: Request) -> FairExecutor:
        if not is_short(request):
            return self.workers
        return self._constraint_workers if is_constrained(request) else self._text_workers

    def _ask(self, request: Request) -> Place:
        """Ask for the memory of a request's images.

        Of an image in a file part nothing is known before it is opened, in a renderer maybe, so it
        is decoded alone.
        """
        images, most = request.decoded_images, self._bounds.max_decoding_bytes
        check_num_pixels(images, self._bounds.max_decoding_pixels)
        num_bytes = needed(images, most).num_bytes
        files = (part for part in parts_of(request.messages) if isinstance(part, FilePart))
        if not request.options.light and any(is_image(file.data) for file in files):
            num_bytes = max(num_bytes, most)
        return self._room.ask(request.account or request.tenant, num_bytes)

    def _run(self, work: Callable[[Request, Place], T], request: Request, place: Place) -> T:
        if self.is_closed:
            raise closing()
        return work(request, place)

    def _leave(self, place: Place, _: object = None) -> None:
        self._present.discard(place)
        place.leave()


def _drop_result(drop: Callable[[T], None], future: Future[T]) -> None:
    """Hand over a result that came too late."""
    if not future.cancelled() and future.exception() is None:
        drop(future.result())
