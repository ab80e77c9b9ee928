"""Decodes the images of one request side by side.

Runs in the thread that makes the prompt, with the help of whichever workers are free. Nobody waits
for a worker here: what none of them began is done by the one who asks, so that all workers may ask.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vlmkit.ask.image import Image
from vlmkit.ask.stage import Stage
from vlmkit.errors import ImageError, VlmkitError
from vlmkit.running.inbox import closing

if TYPE_CHECKING:
    import PIL.Image


class Pictures:
    """Decodes images.

    Args:
        workers: who helps.
        num_at_once: images of one request that are decoded at the same time, at most.
    """

    def __init__(self, workers: Executor, num_at_once: int) -> None:
        self._workers = workers
        self._num_helpers = num_at_once - 1

    @contextmanager
    def decoded(self, images: Iterable[Image]) -> Iterator[Mapping[int, Stage]]:
        """Decode images and keep their pixels, for as long as the context is open.

        Yields:
            How long that took, by their places; one that is shown twice is decoded once.

        Raises:
            ImageError: one cannot be decoded; of several it is the first, and says which it is.
            OutOfMemory: this machine has no room for them now.
            EngineError: the pipeline is closed.
        """
        work = _Work(images)
        try:
            self._do(work)
            work.check()
            yield work.stages
        finally:
            work.pixels.clear()

    def _do(self, work: "_Work") -> None:
        num_helpers = min(self._num_helpers, len(work.left) - 1)
        try:
            helpers = [self._workers.submit(work.run) for _ in range(num_helpers)]
        except RuntimeError as error:  # the workers are gone
            raise closing() from error
        work.run()
        for helper in helpers:
            if not helper.cancel():
                helper.result()


class _Work:
    """What is left to decode, and what came of the rest."""

    def __init__(self, images: Iterable[Image]) -> None:
        places: dict[Image, int] = {}
        for place, image in enumerate(images):
            places.setdefault(image, place)  # one that is shown twice is decoded once
        self.left = deque(places.items())
        self.pixels: list[PIL.Image.Image] = []
        self.stages: dict[int, Stage] = {}
        self._errors: dict[int, VlmkitError] = {}

    def run(self) -> None:
        """Decode what nobody else has begun; after an error, nothing that stands behind it."""
        while self.left and not self._errors:
            try:
                image, place = self.left.popleft()
            except IndexError:  # another was faster
                return
            began_s = time.time()
            try:
                self.pixels.append(image.to_pil())
                self.stages[place] = Stage.since(began_s)
            except VlmkitError as error:
                self._errors[place] = error

    def check(self) -> None:
        """Raise the error of the first image that has one."""
        if self._errors:
            place, error = min(self._errors.items(), key=lambda found: found[0])
            if isinstance(error, ImageError):
                error.index = place
            raise error
