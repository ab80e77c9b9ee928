"""The threads in which a pipeline's media encoder runs, beside the loop.

They take media and return the features or the error of each. An encoder has one thread unless it
states that it can be called concurrently. A thread that becomes free takes its share of the media
that wait, oldest first, as its next batch; a single thread takes all of them. A thread ends when
none wait: numeric libraries keep worker threads for each thread that called them, which would slow
down the loop's permanently. Requests and caches are in :mod:`.encoder_queue`.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from itertools import islice

from vlmkit.errors import EngineError, PluginError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import EncodesInScopes, MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.running.faults.attribution import Fault
from vlmkit.running.faults.isolation import isolated
from vlmkit.types.stage import Stage

Key = tuple[bytes, bytes]
"""A medium in a cache scope: the sequence's scope and the slot's digest."""


Result = tuple[Key, MediaFeatures | Exception, Stage]
"""A medium, its features or its error, and how long its batch took."""

MAX_CONCURRENCY = 64


def max_concurrency_of(encoder: MediaEncoder | None) -> int:
    """Return how many calls of an encoder may run at once.

    Raises:
        PluginError: the encoder states no number from 1 to 64.
    """
    stated: object = getattr(encoder, "max_concurrency", 1)
    if type(stated) is not int or not 1 <= stated <= MAX_CONCURRENCY:
        raise PluginError(
            f"media encoder of type {type(encoder).__name__!r} has max_concurrency {stated!r}, not "
            f"a number from 1 to {MAX_CONCURRENCY}"
        )
    return stated


@dataclass(frozen=True, slots=True, eq=False)
class EncoderBatch:
    """Media that are encoded together.

    Attributes:
        slots: the media.
        since: when their encoding began, by ``perf_counter``.
        ident: the identifier of the thread that encodes them.
    """

    slots: Mapping[Key, MediaSlot]
    since: float
    ident: int


class EncoderThreads:
    """Encodes batches of media, in threads that exist while media wait.

    Args:
        encoder: encodes; None fails every medium.
        on_results: called in these threads when there is something to take.

    Raises:
        PluginError: the encoder states an invalid ``max_concurrency``.
    """

    def __init__(self, encoder: MediaEncoder | None, on_results: Callable[[], None]) -> None:
        self._encoder = encoder
        self._on_results = on_results
        self._max_threads = max_concurrency_of(encoder)
        self._lock = threading.Lock()
        self._queue: dict[Key, MediaSlot] = {}
        self._results: list[Result] = []
        self._panic: BaseException | None = None
        self._is_stopped = False
        self._threads: set[threading.Thread] = set()
        self._batches: dict[int, EncoderBatch] = {}  # by thread, oldest first

    @property
    def oldest_batch(self) -> EncoderBatch | None:
        """The batch that has been encoded for the longest time; None if there is none."""
        with self._lock:
            return next(iter(self._batches.values()), None)

    def put(self, slots: Mapping[Key, MediaSlot]) -> None:
        """Encode media, soon and together as far as the threads share them."""
        with self._lock:
            if self._is_stopped or not slots:
                return
            self._queue.update(slots)
            for _ in range(min(len(self._queue), self._max_threads - len(self._threads))):
                thread = threading.Thread(target=self._run, name="vlmkit-encode", daemon=True)
                self._threads.add(thread)
                thread.start()

    def cancel(self, key: Key) -> bool:
        """Forget a medium that waits; False if it is being encoded or is done."""
        with self._lock:
            return self._queue.pop(key, None) is not None

    def take(self) -> list[Result]:
        """Return what was encoded since the last call, and what went wrong with the others.

        Raises:
            BaseException: the encoder broke in a way that is no Exception.
        """
        with self._lock:
            if self._panic is not None:
                raise self._panic
            results, self._results = self._results, []
            return results

    def stop(self) -> None:
        """Forget what waits and what was not taken; each thread ends after its batch."""
        with self._lock:
            self._is_stopped = True
            self._queue.clear()
            self._results.clear()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until all threads have ended, and return whether they have; call :meth:`stop` first.

        Args:
            timeout_s: for all of them together; None waits without a limit.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        try:
            while self._encode_next():
                self._on_results()
        except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
            self._panic = error
            self._on_results()

    def _encode_next(self) -> bool:
        """Encode a share of the media that wait; return False if there are none."""
        with self._lock:
            slots = self._taken_share()
            if not slots:
                self._threads.discard(threading.current_thread())
                return False
            ident = threading.get_ident()
            self._batches[ident] = EncoderBatch(slots, time.perf_counter(), ident)
        began_s = time.time()
        results = isolated(self._encode, list(slots.items()))
        stage = Stage.since(began_s)
        with self._lock:
            del self._batches[ident]
            if not self._is_stopped:
                self._results += (
                    (key, result, stage) for key, result in zip(slots, results, strict=True)
                )
        return True

    def _taken_share(self) -> dict[Key, MediaSlot]:
        """Remove and return this thread's share of the media that wait, oldest first."""
        num_media = -(-len(self._queue) // self._max_threads)
        share = dict(islice(self._queue.items(), num_media))
        for key in share:
            del self._queue[key]
        return share

    def _encode(self, media: Seq[tuple[Key, MediaSlot]]) -> list[MediaFeatures]:
        encoder, slots = self._encoder, [slot for _, slot in media]
        if encoder is None:
            raise EngineError("this pipeline has no media encoder")
        if isinstance(encoder, EncodesInScopes):
            scopes = [scope for (scope, _), _ in media]
            features = list(encoder.encode_in_scopes(slots, scopes))
        else:
            features = list(encoder.encode(slots))
        found, wanted = [f.num_tokens for f in features], [slot.num_features for slot in slots]
        if found != wanted:
            raise Fault("media_encoder", f"returned {found} features, expected {wanted}")
        return features
