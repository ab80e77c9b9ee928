"""Room for pictures: how many pixels may be decoded at once, and what is kept of those that were.

Room is asked for before anything is decoded, by the sizes that headers state. Who finds none waits;
of those who wait, it is the turn of the tenant who has least. Nothing here blocks: what one thread
changes is seen by whichever thread is at it, so that memory may tell at any time that it is gone.
"""

import asyncio
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.seams.cancellation import Cancellation
from vlmkit.seams.prompt import Prompt


def no_room() -> OutOfMemory:
    """Return the error of a request for whose images there is no room now."""
    return OutOfMemory("the images of this request")


class Place:
    """What one request has of the room, until it leaves.

    Args:
        room: which it is part of.
        tenant: whose it is.
        num_pixels: that it wants.

    Attributes:
        granted: is done when it has them.
        cancellation: of its request.
    """

    def __init__(self, room: "MediaRoom", tenant: str, num_pixels: int) -> None:
        self.tenant = tenant
        self.num_pixels = num_pixels
        self.granted: Future[None] = Future()
        self.cancellation = Cancellation()
        self._room = room

    def wait(self, timeout_s: float) -> None:
        """Wait for its turn.

        Raises:
            OutOfMemory: it did not come in time.
        """
        if self.num_pixels:
            try:
                self.granted.result(timeout_s)
            except TimeoutError:
                raise no_room() from None

    async def awaited(self, timeout_s: float) -> None:
        """Wait for its turn; errors as for :meth:`wait`."""
        if self.num_pixels and not self.granted.done():
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.wrap_future(self.granted)
            except TimeoutError:
                raise no_room() from None

    def grow(self, num_pixels: int) -> bool:
        """Have so many pixels in all, if there is room for them now."""
        return self._room.grow(self, num_pixels)

    def keep(self, prompt: Prompt) -> None:
        """Count what was prepared, for as long as anybody holds it."""
        self._room.keep(prompt, self.tenant)

    def leave(self) -> None:
        """Give the pixels back, or no longer wait for them; harmless when done twice."""
        if self.num_pixels:
            self._room.leave(self)


class MediaRoom:
    """The room of one model.

    Args:
        max_pixels: that are decoded at once.
        max_bytes: of arrays that were made of them, above which nobody begins who has his share.

    Attributes:
        num_pixels: that are taken.
        num_bytes: of arrays that are held.
    """

    def __init__(self, max_pixels: int, max_bytes: int) -> None:
        self._max_pixels = max_pixels
        self._max_bytes = max_bytes
        self.num_pixels = self.num_bytes = 0
        self._by_tenant: Counter[str] = Counter()
        self._bytes_by_tenant: Counter[str] = Counter()
        self._waiting: dict[Place, None] = {}  # in the order in which they came
        self._inside: set[Place] = set()
        self._changes: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()

    def ask(self, tenant: str, num_pixels: int) -> Place:
        """Return a place, which may have to wait if it wants any pixels.

        Raises:
            ImageError: there will never be room for so many pixels.
        """
        self._check(num_pixels)
        place = Place(self, tenant, num_pixels)
        if num_pixels:
            self._change(partial(self._waiting.setdefault, place))
        return place

    def grow(self, place: Place, num_pixels: int) -> bool:
        """Let a place have so many pixels, if they are free now.

        Raises:
            ImageError: there will never be room for so many pixels.
        """
        self._check(num_pixels)
        with self._lock:
            more = num_pixels - place.num_pixels
            if more > 0 and self.num_pixels + more > self._max_pixels:
                return False
            if more > 0:
                place.num_pixels = num_pixels
                self._inside.add(place)
                self._count(place.tenant, more)
        self._settle()
        return True

    def leave(self, place: Place) -> None:
        """Take back what a place has."""
        self._change(partial(self._remove, place))

    def keep(self, prompt: Prompt, tenant: str) -> None:
        """Count the arrays of a prompt for as long as they are there."""
        for slot in prompt.media:
            for array in slot.inputs.values():
                num_bytes = int(getattr(array, "nbytes", 0))
                self._change(partial(self._hold, tenant, num_bytes))
                end = partial(self._hold, tenant, -num_bytes)
                gone = weakref.finalize(array, self._change, end)
                gone.atexit = False

    def _check(self, num_pixels: int) -> None:
        if num_pixels > self._max_pixels:
            raise ImageError(
                f"the images of a request have more than {self._max_pixels} pixels together",
                param="messages",
                code="image_too_large",
                hint="send fewer, or smaller ones",
            )

    def _change(self, change: Callable[[], object]) -> None:
        """Have something changed, here or by whoever is changing something already."""
        self._changes.append(change)
        self._settle()

    def _settle(self) -> None:
        while self._changes and self._lock.acquire(blocking=False):
            granted: list[Place] = []
            try:
                while self._changes:
                    self._changes.popleft()()
                    granted += self._grant()
            finally:
                self._lock.release()
            for place in granted:
                if place.granted.set_running_or_notify_cancel():
                    place.granted.set_result(None)

    def _grant(self) -> list[Place]:
        """Let in who waits, as far as there is room; nobody passes whose turn it is."""
        granted = []
        while able := [place for place in self._waiting if self._may_begin(place.tenant)]:
            place = min(able, key=lambda place: self._by_tenant[place.tenant])
            if self.num_pixels + place.num_pixels > self._max_pixels:
                break
            del self._waiting[place]
            self._inside.add(place)
            self._count(place.tenant, place.num_pixels)
            granted.append(place)
        return granted

    def _may_begin(self, tenant: str) -> bool:
        """Tell whether a tenant may have more arrays: there is room, or he has not his share."""
        share = self._max_bytes // (1 + len(self._bytes_by_tenant))
        return self.num_bytes <= self._max_bytes or self._bytes_by_tenant[tenant] < share

    def _remove(self, place: Place) -> None:
        self._waiting.pop(place, None)
        if place in self._inside:
            self._inside.remove(place)
            self._count(place.tenant, -place.num_pixels)

    def _count(self, tenant: str, num_pixels: int) -> None:
        self.num_pixels += num_pixels
        _add(self._by_tenant, tenant, num_pixels)

    def _hold(self, tenant: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        _add(self._bytes_by_tenant, tenant, num_bytes)


def _add(counter: Counter[str], tenant: str, num: int) -> None:
    counter[tenant] += num
    if not counter[tenant]:
        del counter[tenant]
