"""Decodes the images of one request in parallel.

Runs in the thread that prepares the request; idle worker threads of its pool help. It never waits
for a worker to become idle: images that no worker started are decoded by the calling thread, so all
workers may call this at the same time.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vlmkit.errors import ImageError, VlmkitError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.kit import heap
from vlmkit.running.faults.engine_errors import closing_error
from vlmkit.running.scheduling.decode_memory import DecodeLease, needed
from vlmkit.running.scheduling.fair_executor import FairExecutor
from vlmkit.types.image import Image
from vlmkit.types.stage import Stage

if TYPE_CHECKING:
    import PIL.Image

LARGE_BYTES = 32 * 2**20  # freed memory of which malloc may keep some


class ImageDecoder:
    """Decodes images.

    Args:
        workers: who helps.
        num_at_once: images of one request that are decoded at the same time, at most.
        max_bytes: memory beyond which those of one request are decoded one after the other.
    """

    def __init__(self, workers: FairExecutor, num_at_once: int, max_bytes: int) -> None:
        self._workers = workers
        self._max_bytes = max_bytes
        self._num_helpers = num_at_once - 1

    @contextmanager
    def decoded(self, images: Iterable[Image], place: DecodeLease) -> Iterator[Mapping[int, Stage]]:
        """Decode images and keep their pixels, for as long as the context is open.

        Args:
            images: of one request.
            place: whose request it is, and whether it was cancelled.

        Yields:
            How long that took, by their places; one that is shown twice is decoded once.

        Raises:
            RequestCancelled: the request was cancelled.
            ImageError: one cannot be decoded; of several it is the first, and says which it is.
            OutOfMemory: this machine has no room for them now.
            EngineError: the pipeline is closed.
        """
        images = list(images)
        work = _Work(images, place.cancellation)
        need = needed(images, self._max_bytes)
        num_helpers = 0 if need.is_one_by_one else self._num_helpers
        try:
            self._do(work, place.tenant, num_helpers)
            work.check()
            yield work.stages
        finally:
            work.pixels.clear()
            if need.num_bytes >= LARGE_BYTES:
                heap.trim()

    def _do(self, work: "_Work", tenant: str, max_helpers: int) -> None:
        num_helpers = min(max_helpers, len(work.left) - 1)
        try:
            helpers = [self._workers.submit(tenant, work.run) for _ in range(num_helpers)]
        except RuntimeError as error:  # the workers are gone
            raise closing_error() from error
        work.run()
        for helper in helpers:
            if not helper.cancel():
                helper.result()


class _Work:
    """What is left to decode, and what came of the rest."""

    def __init__(self, images: Iterable[Image], cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        places: dict[Image, int] = {}
        for place, image in enumerate(images):
            places.setdefault(image, place)  # one that is shown twice is decoded once
        self.left = deque(places.items())
        self.pixels: list[PIL.Image.Image] = []
        self.stages: dict[int, Stage] = {}
        self._errors: dict[int, VlmkitError] = {}

    def run(self) -> None:
        """Decode what no other thread has started; after an error or a cancellation, nothing."""
        while self.left and not self._errors and not self._cancellation.is_cancelled:
            try:
                image, place = self.left.popleft()
            except IndexError:  # another was faster
                return
            began_s = time.time()
            try:
                self.pixels.append(image.to_pil(self._cancellation.calling))
                self.stages[place] = Stage.since(began_s)
            except VlmkitError as error:
                self._errors[place] = error

    def check(self) -> None:
        """Raise the error of the first image that has one, or that the request was cancelled."""
        self._cancellation.check()
        if self._errors:
            raise self._first_error()

    def _first_error(self) -> VlmkitError:
        """Return the error to raise; none is kept, since its frames hold what was decoded."""
        place = min(self._errors)
        error = self._errors[place]
        self._errors.clear()
        if isinstance(error, ImageError):
            error.index = place
        return error
