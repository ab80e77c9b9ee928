"""The decode memory limiter: bytes that decoding may take at once, and what is kept of pictures.

Memory is asked for before anything is decoded, by what headers state and by what each format was
measured to take. Requests that find none wait; of those that wait, the tenant that has least comes
first. Nothing here blocks: what one thread changes is seen by whichever thread is at it, so that
memory may be reported as freed at any time.
"""

import asyncio
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from vlmkit.errors import ImageError, OutOfMemory
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.interfaces.prompt import Prompt
from vlmkit.types.image import Image
from vlmkit.types.message import num_pixels

CHECK_S = 0.1  # how often a lease that waits looks whether its request was cancelled


def no_room() -> OutOfMemory:
    """Return the error of a request for whose images there is no room now."""
    return OutOfMemory("the images of this request")


def check_num_pixels(images: Iterable[Image], most: int) -> None:
    """Refuse images that have too many pixels together.

    Raises:
        ImageError: they have.
    """
    if num_pixels(images) > most:
        raise ImageError(
            f"the images of a request have more than {most} pixels together",
            param="messages",
            code="image_too_large",
            hint="send fewer, or smaller ones",
        )


class Need(NamedTuple):
    """Memory for the images of one request.

    Attributes:
        num_bytes: while they are decoded and made ready.
        is_one_by_one: whether that holds only if they are decoded one after the other.
    """

    num_bytes: int
    is_one_by_one: bool


def needed(images: Iterable[Image], max_bytes: int) -> Need:
    """Return the memory for images; an image that is shown twice is decoded once.

    Args:
        images: all of a request.
        max_bytes: memory in which they would be decoded side by side.
    """
    costs = [image.cost for image in set(images)]
    held = sum(cost.held_bytes for cost in costs)
    side_by_side = sum(cost.peak_bytes for cost in costs)
    one_by_one = held + max((cost.peak_bytes - cost.held_bytes for cost in costs), default=0)
    is_one_by_one = side_by_side > max_bytes
    decoding = one_by_one if is_one_by_one else side_by_side
    preparing = held + max((cost.prepare_bytes for cost in costs), default=0)
    return Need(max(decoding, preparing), is_one_by_one)


class DecodeLease:
    """The lease of one request, until it leaves.

    Args:
        room: the limiter.
        tenant: whose it is.
        num_bytes: that it wants.

    Attributes:
        granted: is done when it has them.
        cancellation: of its request.
    """

    def __init__(self, room: "DecodeMemoryLimiter", tenant: str, num_bytes: int) -> None:
        self.tenant = tenant
        self.num_bytes = num_bytes
        self.granted: Future[None] = Future()
        self.cancellation = Cancellation()
        self._room = room

    async def awaited(self, timeout_s: float) -> None:
        """Wait until it is granted.

        Raises:
            OutOfMemory: that did not come in time.
        """
        if self.num_bytes and not self.granted.done():
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.wrap_future(self.granted)
            except TimeoutError:
                raise no_room() from None

    def enlarge(self, num_bytes: int, timeout_s: float) -> None:
        """Wait in this thread for so many bytes in all, where that is more than it has.

        Nothing may be decoded yet: what the lease has is given back while it waits, so that those
        that wait never hold memory that others wait for.

        Raises:
            OutOfMemory: it did not get them in time.
            RequestCancelled: the request was cancelled.
        """
        if num_bytes <= self.num_bytes:
            return
        self._room.exchange(self, num_bytes)
        stop_s = time.monotonic() + timeout_s
        while not self.granted.done():
            self.cancellation.check()
            with suppress(TimeoutError):
                self.granted.result(CHECK_S)
            if time.monotonic() >= stop_s and not self.granted.done():
                raise no_room()

    def keep(self, prompt: Prompt) -> None:
        """Count what was prepared, for as long as anybody holds it."""
        self._room.keep(prompt, self.tenant)

    def leave(self) -> None:
        """Give the memory back, or no longer wait for it; harmless when done twice."""
        if self.num_bytes:
            self._room.leave(self)


class DecodeMemoryLimiter:
    """The decode memory limiter of one model.

    Args:
        max_decoding_bytes: that are taken at once. A request that needs more is let in alone.
        max_bytes: of arrays that were made of them, above which no tenant above its share begins.

    Attributes:
        decoding_bytes: that are taken.
        num_bytes: of arrays that are held.
    """

    def __init__(self, max_decoding_bytes: int, max_bytes: int) -> None:
        self._max_decoding_bytes = max_decoding_bytes
        self._max_bytes = max_bytes
        self.decoding_bytes = self.num_bytes = 0
        self._by_tenant: Counter[str] = Counter()
        self._last_grants: dict[str, int] = {}  # of tenants that wait or have a lease
        self._num_grants = 0
        self._bytes_by_tenant: Counter[str] = Counter()
        self._waiting: dict[DecodeLease, None] = {}  # in the order in which they came
        self._inside: set[DecodeLease] = set()
        self._changes: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()

    def ask(self, tenant: str, num_bytes: int) -> DecodeLease:
        """Return a lease, which may have to wait if it wants any memory."""
        place = DecodeLease(self, tenant, num_bytes)
        if num_bytes:
            self._change(partial(self._waiting.setdefault, place))
        return place

    def exchange(self, place: DecodeLease, num_bytes: int) -> None:
        """Take back what a lease has, and let it wait for so many bytes."""
        self.leave(place)
        place.num_bytes, place.granted = num_bytes, Future()
        self._change(partial(self._waiting.setdefault, place))

    def leave(self, place: DecodeLease) -> None:
        """Take back what a lease has."""
        self._change(partial(self._remove, place, place.num_bytes))

    def keep(self, prompt: Prompt, tenant: str) -> None:
        """Count the arrays of a prompt for as long as they are there."""
        for slot in prompt.media:
            for array in slot.inputs.values():
                num_bytes = int(getattr(array, "nbytes", 0))
                self._change(partial(self._hold, tenant, num_bytes))
                end = partial(self._hold, tenant, -num_bytes)
                gone = weakref.finalize(array, self._change, end)
                gone.atexit = False

    def _has_room(self, num_bytes: int) -> bool:
        """Return whether so many bytes are free, or nothing is taken at all."""
        free = self._max_decoding_bytes - self.decoding_bytes
        return num_bytes <= free or not self.decoding_bytes

    def _change(self, change: Callable[[], object]) -> None:
        """Have something changed, here or by whoever is changing something already."""
        self._changes.append(change)
        self._settle()

    def _settle(self) -> None:
        while self._changes and self._lock.acquire(blocking=False):
            granted: list[DecodeLease] = []
            try:
                while self._changes:
                    self._changes.popleft()()
                    granted += self._grant()
            finally:
                self._lock.release()
            for place in granted:
                if place.granted.set_running_or_notify_cancel():
                    place.granted.set_result(None)

    def _grant(self) -> list[DecodeLease]:
        """Let leases in as far as there is memory; none passes the one whose turn it is.

        It is the turn of the tenant that has least, and of equals of the one that had none longest:
        where one lease takes all there is, all that wait have nothing.
        """
        granted = []
        while able := [place for place in self._waiting if self._may_begin(place.tenant)]:
            place = min(able, key=self._turn)
            if not self._has_room(place.num_bytes):
                break
            del self._waiting[place]
            self._inside.add(place)
            self._num_grants += 1
            self._last_grants[place.tenant] = self._num_grants
            self._count(place.tenant, place.num_bytes)
            granted.append(place)
        return granted

    def _turn(self, place: DecodeLease) -> tuple[int, int]:
        return self._by_tenant[place.tenant], self._last_grants.get(place.tenant, 0)

    def _may_begin(self, tenant: str) -> bool:
        """Return whether a tenant may have more arrays: there is room, or it is below its share."""
        share = self._max_bytes // (1 + len(self._bytes_by_tenant))
        return self.num_bytes <= self._max_bytes or self._bytes_by_tenant[tenant] < share

    def _remove(self, place: DecodeLease, num_bytes: int) -> None:
        self._waiting.pop(place, None)
        if place in self._inside:
            self._inside.remove(place)
            self._count(place.tenant, -num_bytes)
        if all(each.tenant != place.tenant for each in (*self._waiting, *self._inside)):
            self._last_grants.pop(place.tenant, None)

    def _count(self, tenant: str, num_bytes: int) -> None:
        self.decoding_bytes += num_bytes
        _add(self._by_tenant, tenant, num_bytes)

    def _hold(self, tenant: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        _add(self._bytes_by_tenant, tenant, num_bytes)


def _add(counter: Counter[str], tenant: str, num: int) -> None:
    counter[tenant] += num
    if not counter[tenant]:
        del counter[tenant]
