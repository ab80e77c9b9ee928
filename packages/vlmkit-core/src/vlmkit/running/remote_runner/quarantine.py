"""Refuses requests that make the process that answers them crash, so that retries stay harmless.

A request is known by a digest of all that determines its answer, so a client's retry counts as the
same request. A crash makes all requests in progress suspects. The one that was in progress in the
most crashes, at least two, is refused for an hour. Several with equal counts are tried one at a
time, so that the next crash shows which one it was. A suspect that is answered is none any more.

It notices no crash itself, and keeps no content of a request.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from vlmkit.errors import QueueFull, RequestQuarantined
from vlmkit.types.request import Request
from vlmkit.wire.buffers import NotSerializable
from vlmkit.wire.codec import WIRE
from vlmkit.wire.frames import Frame, frame_parts

log = logging.getLogger(__name__)

QUARANTINE_S = 3600.0
MAX_SUSPECTS = 4096
MIN_CRASHES = 2
RETRY_S = 1


@dataclass(slots=True)
class _Suspect:
    """A request that was in progress during a crash.

    Attributes:
        num_bytes: its size on the wire, which is cheap to compare.
        expires_s: when it is forgotten.
        num_crashes: the crashes during which it was in progress.
        is_alone: whether it runs only while no other such request does.
        is_refused: whether it is in quarantine.
        num_open: how often it is in progress now.
    """

    num_bytes: int
    expires_s: float
    num_crashes: int = 0
    is_alone: bool = False
    is_refused: bool = False
    num_open: int = 0


class Quarantine:
    """The suspects of one model; may be used from any thread.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._suspects: dict[bytes, _Suspect] = {}

    def enter(self, request: Request) -> bytes:
        """Note the start of a request, and return a ticket for :meth:`leave`.

        Costs nothing while there are no suspects.

        Raises:
            RequestQuarantined: it is in quarantine.
            QueueFull: it is tried alone, and another such request is in progress.
        """
        if not self._suspects:
            return b""
        digest = self._digest_of_suspect(request)
        with self._lock:
            self._forget_old()
            suspect = self._suspects.get(digest)
            if suspect is None:
                return b""
            if suspect.is_refused:
                raise RequestQuarantined
            if suspect.is_alone and any(
                each.num_open for each in self._suspects.values() if each.is_alone
            ):
                full = QueueFull("requests that may have made the model crash are tried one by one")
                full.retry_after_s = RETRY_S
                raise full
            suspect.num_open += 1
        return digest

    def leave(self, ticket: bytes, *, is_answered: bool) -> None:
        """Note the end of a request without a crash."""
        if not ticket:
            return
        with self._lock:
            suspect = self._suspects.get(ticket)
            if suspect is None:
                return
            suspect.num_open = max(0, suspect.num_open - 1)
            if is_answered and not suspect.is_refused:
                del self._suspects[ticket]

    def crash(self, requests: Iterable[tuple[Request, bytes]]) -> None:
        """Note a crash, with the requests in progress and their tickets; all of them have ended."""
        found = {}
        for request, ticket in requests:
            self.leave(ticket, is_answered=False)
            if (frame := _frame(request)) is not None:
                found[ticket or _digest(frame)] = (_num_bytes(frame), request.id)
        with self._lock:
            self._forget_old()
            self._count(found)

    def _count(self, found: dict[bytes, tuple[int, str]]) -> None:
        for digest, (num_bytes, _) in found.items():
            suspect = self._suspects.pop(digest, None) or _Suspect(num_bytes, 0.0)
            suspect.num_crashes += 1
            suspect.expires_s = self._clock() + QUARANTINE_S
            self._suspects[digest] = suspect  # the latest last
        while len(self._suspects) > MAX_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]
        counts = {
            each: self._suspects[each].num_crashes for each in found if each in self._suspects
        }
        most = max(counts.values(), default=0)
        leading = [each for each, count in counts.items() if count == most]
        if most < MIN_CRASHES:
            return
        for digest in leading:
            self._suspects[digest].is_alone = True
        if len(leading) == 1:
            self._refuse(self._suspects[leading[0]], found[leading[0]][1])

    def _refuse(self, found: _Suspect, request_id: str) -> None:
        log.error(
            "request %s is refused for %d minutes: the model crashed %d times while it ran",
            *(request_id, QUARANTINE_S // 60, found.num_crashes),
        )
        for suspect in self._suspects.values():
            suspect.is_alone = False
        found.is_refused = True

    def _digest_of_suspect(self, request: Request) -> bytes:
        """Return the digest of a request, if it has the size of a suspect; nothing otherwise."""
        if (frame := _frame(request)) is None:
            return b""
        num_bytes = _num_bytes(frame)
        with self._lock:
            is_likely = any(each.num_bytes == num_bytes for each in self._suspects.values())
        return _digest(frame) if is_likely else b""

    def _forget_old(self) -> None:
        now_s = self._clock()
        for digest, suspect in list(self._suspects.items()):
            if suspect.expires_s <= now_s and not suspect.num_open:
                del self._suspects[digest]


def _frame(request: Request) -> Frame | None:
    """Return what determines the answer; None for a request that cannot be sent to a process."""
    try:
        return WIRE.encode(replace(request, id="", trace="", priority=0))
    except NotSerializable:
        return None


def _num_bytes(frame: Frame) -> int:
    return sum(memoryview(part).nbytes for part in frame_parts(frame))


def _digest(frame: Frame) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in frame_parts(frame):
        digest.update(part)
    return digest.digest()
