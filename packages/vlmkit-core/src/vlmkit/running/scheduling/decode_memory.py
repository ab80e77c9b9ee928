"""The decode memory limiter: bounds the memory of image decoding, and of what was decoded.

A request leases memory before any image is decoded. The amount follows from the image headers and
the measured cost of each format. Requests wait for memory that is not free, and the tenant that
holds least is next.

Nothing here blocks on a lock: a thread that finds the state locked leaves its change to the thread
that holds the lock. So memory may be reported as freed at any time, even by a finalizer.
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

POLL_S = 0.1  # how often a waiting lease checks whether its request was cancelled


def check_num_pixels(images: Iterable[Image], max_pixels: int) -> None:
    """Refuse images that have too many pixels together.

    Raises:
        ImageError: they have more than ``max_pixels``.
    """
    if num_pixels(images) > max_pixels:
        raise ImageError(
            f"the images of a request have more than {max_pixels} pixels together",
            param="messages",
            code="image_too_large",
            hint="send fewer, or smaller ones",
        )


class MemoryNeed(NamedTuple):
    """The memory that the images of one request need.

    Attributes:
        num_bytes: peak memory while they are decoded and preprocessed.
        is_sequential: whether this holds only if they are decoded one after the other.
    """

    num_bytes: int
    is_sequential: bool


def memory_needed(images: Iterable[Image], max_bytes: int) -> MemoryNeed:
    """Return the memory that images need; an image that is shown twice counts once.

    Args:
        images: all images of a request.
        max_bytes: memory up to which they are decoded in parallel.
    """
    costs = [image.cost for image in set(images)]
    held = sum(cost.held_bytes for cost in costs)
    parallel = sum(cost.peak_bytes for cost in costs)
    sequential = held + max((cost.peak_bytes - cost.held_bytes for cost in costs), default=0)
    is_sequential = parallel > max_bytes
    decoding = sequential if is_sequential else parallel
    preparing = held + max((cost.prepare_bytes for cost in costs), default=0)
    return MemoryNeed(max(decoding, preparing), is_sequential)


class DecodeLease:
    """The lease of one request, until it is released.

    Args:
        limiter: the limiter that grants it.
        tenant: the tenant of the request.
        num_bytes: the memory that it asks for.

    Attributes:
        granted: is done when the lease has its memory.
        cancellation: of the request.
    """

    def __init__(self, limiter: "DecodeMemoryLimiter", tenant: str, num_bytes: int) -> None:
        self.tenant = tenant
        self.num_bytes = num_bytes
        self.granted: Future[None] = Future()
        self.cancellation = Cancellation()
        self._limiter = limiter

    async def wait(self, timeout_s: float) -> None:
        """Wait until the lease is granted.

        Raises:
            OutOfMemory: it is not granted in time.
        """
        if self.num_bytes and not self.granted.done():
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.wrap_future(self.granted)
            except TimeoutError:
                raise _out_of_memory() from None

    def enlarge(self, num_bytes: int, timeout_s: float) -> None:
        """Block this thread until the lease has so many bytes in all, if it has fewer.

        The lease gives its memory back while it waits: requests that wait never hold memory that
        others wait for. So nothing may be decoded yet.

        Raises:
            OutOfMemory: the memory is not granted in time.
            RequestCancelled: the request was cancelled.
        """
        if num_bytes <= self.num_bytes:
            return
        self._limiter.resize(self, num_bytes)
        stop_s = time.monotonic() + timeout_s
        while not self.granted.done():
            self.cancellation.check()
            with suppress(TimeoutError):
                self.granted.result(POLL_S)
            if time.monotonic() >= stop_s and not self.granted.done():
                raise _out_of_memory()

    def track(self, prompt: Prompt) -> None:
        """Count the arrays of a prepared prompt for as long as they are alive."""
        self._limiter.track(prompt, self.tenant)

    def release(self) -> None:
        """Give the memory back, or stop waiting for it; harmless when done twice."""
        if self.num_bytes:
            self._limiter.release(self)


class DecodeMemoryLimiter:
    """The decode memory limiter of one model.

    Args:
        max_decoding_bytes: memory of all leases at a time. A lease that needs more is granted
            alone.
        max_prepared_bytes: bytes of prepared arrays above which tenants over their share must wait.

    Attributes:
        decoding_bytes: memory of the granted leases.
        prepared_bytes: bytes of the prepared arrays that are alive.
    """

    def __init__(self, max_decoding_bytes: int, max_prepared_bytes: int) -> None:
        self._max_decoding_bytes = max_decoding_bytes
        self._max_prepared_bytes = max_prepared_bytes
        self.decoding_bytes = self.prepared_bytes = 0
        self._decoding_by_tenant: Counter[str] = Counter()
        self._last_grants: dict[str, int] = {}  # of tenants with a granted or waiting lease
        self._num_grants = 0
        self._prepared_by_tenant: Counter[str] = Counter()
        self._waiting: dict[DecodeLease, None] = {}  # in order of arrival
        self._granted: set[DecodeLease] = set()
        self._changes: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()

    def lease(self, tenant: str, num_bytes: int) -> DecodeLease:
        """Return a lease, which waits for its memory if it asks for any."""
        lease = DecodeLease(self, tenant, num_bytes)
        if num_bytes:
            self._change(partial(self._waiting.setdefault, lease))
        return lease

    def resize(self, lease: DecodeLease, num_bytes: int) -> None:
        """Take the memory of a lease back, and queue it for another amount."""
        self.release(lease)
        lease.num_bytes, lease.granted = num_bytes, Future()
        self._change(partial(self._waiting.setdefault, lease))

    def release(self, lease: DecodeLease) -> None:
        """Take the memory of a lease back."""
        self._change(partial(self._remove, lease, lease.num_bytes))

    def track(self, prompt: Prompt, tenant: str) -> None:
        """Count the arrays of a prompt for as long as they are alive."""
        for slot in prompt.media:
            for array in slot.inputs.values():
                num_bytes = int(getattr(array, "nbytes", 0))
                self._change(partial(self._add_prepared, tenant, num_bytes))
                end = partial(self._add_prepared, tenant, -num_bytes)
                finalizer = weakref.finalize(array, self._change, end)
                finalizer.atexit = False

    def _fits(self, num_bytes: int) -> bool:
        """Return whether so many bytes are free, or no lease has any memory."""
        free = self._max_decoding_bytes - self.decoding_bytes
        return num_bytes <= free or not self.decoding_bytes

    def _change(self, change: Callable[[], object]) -> None:
        """Have a change made, by this thread or by the one that makes changes now."""
        self._changes.append(change)
        self._apply_changes()

    def _apply_changes(self) -> None:
        while self._changes and self._lock.acquire(blocking=False):
            granted: list[DecodeLease] = []
            try:
                while self._changes:
                    self._changes.popleft()()
                    granted += self._grant()
            finally:
                self._lock.release()
            for lease in granted:
                if lease.granted.set_running_or_notify_cancel():
                    lease.granted.set_result(None)

    def _grant(self) -> list[DecodeLease]:
        """Grant and return leases in order while there is memory; none overtakes the next one.

        The tenant with the least memory is next; among equals, the one whose last grant is longest
        ago. The latter decides where one lease takes all memory, so that all waiting tenants have
        none.
        """
        granted = []
        while eligible := [lease for lease in self._waiting if self._may_start(lease.tenant)]:
            lease = min(eligible, key=self._rank)
            if not self._fits(lease.num_bytes):
                break
            del self._waiting[lease]
            self._granted.add(lease)
            self._num_grants += 1
            self._last_grants[lease.tenant] = self._num_grants
            self._add_decoding(lease.tenant, lease.num_bytes)
            granted.append(lease)
        return granted

    def _rank(self, lease: DecodeLease) -> tuple[int, int]:
        return self._decoding_by_tenant[lease.tenant], self._last_grants.get(lease.tenant, 0)

    def _may_start(self, tenant: str) -> bool:
        """Return whether prepared arrays are within the bound, or the tenant is below its share."""
        share = self._max_prepared_bytes // (1 + len(self._prepared_by_tenant))
        is_within = self.prepared_bytes <= self._max_prepared_bytes
        return is_within or self._prepared_by_tenant[tenant] < share

    def _remove(self, lease: DecodeLease, num_bytes: int) -> None:
        self._waiting.pop(lease, None)
        if lease in self._granted:
            self._granted.remove(lease)
            self._add_decoding(lease.tenant, -num_bytes)
        if all(each.tenant != lease.tenant for each in (*self._waiting, *self._granted)):
            self._last_grants.pop(lease.tenant, None)

    def _add_decoding(self, tenant: str, num_bytes: int) -> None:
        self.decoding_bytes += num_bytes
        _add(self._decoding_by_tenant, tenant, num_bytes)

    def _add_prepared(self, tenant: str, num_bytes: int) -> None:
        self.prepared_bytes += num_bytes
        _add(self._prepared_by_tenant, tenant, num_bytes)


def _add(counter: Counter[str], tenant: str, num: int) -> None:
    counter[tenant] += num
    if not counter[tenant]:
        del counter[tenant]


def _out_of_memory() -> OutOfMemory:
    return OutOfMemory("the images of this request")
