"""Decodes the images of one request in parallel.

It runs in the thread that prepares the request, and idle worker threads help. It never waits for a
worker: the calling thread decodes all images that no worker has started. So all workers may call it
at the same time.
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
from vlmkit.running.scheduling.decode_memory import DecodeLease, memory_needed
from vlmkit.running.scheduling.fair_executor import FairExecutor
from vlmkit.types.image import Image
from vlmkit.types.stage import Stage

if TYPE_CHECKING:
    import PIL.Image

LARGE_BYTES = 32 * 2**20  # of freed memory, of which malloc may keep a part


class ImageDecoder:
    """Decodes images.

    Args:
        workers: the worker threads that help.
        max_parallel: images of one request that may be decoded at the same time.
        max_bytes: memory above which the images of one request are decoded one after the other.
    """

    def __init__(self, workers: FairExecutor, max_parallel: int, max_bytes: int) -> None:
        self._workers = workers
        self._max_bytes = max_bytes
        self._num_helpers = max_parallel - 1

    @contextmanager
    def decoded(self, images: Iterable[Image], lease: DecodeLease) -> Iterator[Mapping[int, Stage]]:
        """Decode images, except those that are prepared, and keep their pixels meanwhile.

        Args:
            images: the images of one request.
            lease: the lease of the request, with its tenant and cancellation.

        Yields:
            When each image was decoded, by its index. An image that is shown twice is decoded once,
            and has the first index.

        Raises:
            RequestCancelled: the request was cancelled.
            ImageError: an image cannot be decoded; the first one with an error is named.
            OutOfMemory: there is not enough memory now.
            EngineError: the pipeline is closed.
        """
        images = list(images)
        work = _Work(images, lease.cancellation)
        need = memory_needed(images, self._max_bytes)
        num_helpers = 0 if need.is_sequential else self._num_helpers
        try:
            self._do(work, lease.tenant, num_helpers)
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
    """The images of one request that are left to decode, and the results of the others."""

    def __init__(self, images: Iterable[Image], cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        indices: dict[Image, int] = {}
        for index, image in enumerate(images):
            if image.prepared is None:
                indices.setdefault(image, index)  # an image that is shown twice is decoded once
        self.left = deque(indices.items())
        self.pixels: list[PIL.Image.Image] = []
        self.stages: dict[int, Stage] = {}
        self._errors: dict[int, VlmkitError] = {}

    def run(self) -> None:
        """Decode images that no other thread has started, until an error or a cancellation."""
        while self.left and not self._errors and not self._cancellation.is_cancelled:
            try:
                image, index = self.left.popleft()
            except IndexError:  # another thread was faster
                return
            began_s = time.time()
            try:
                self.pixels.append(image.to_pil(self._cancellation.calling))
                self.stages[index] = Stage.since(began_s)
            except VlmkitError as error:
                self._errors[index] = error

    def check(self) -> None:
        """Raise if the request was cancelled or an image failed; the first error counts."""
        self._cancellation.check()
        if self._errors:
            raise self._first_error()

    def _first_error(self) -> VlmkitError:
        """Return the error to raise, and keep none: their frames hold decoded pixels."""
        index = min(self._errors)
        error = self._errors[index]
        self._errors.clear()
        if isinstance(error, ImageError):
            error.index = index
        return error
