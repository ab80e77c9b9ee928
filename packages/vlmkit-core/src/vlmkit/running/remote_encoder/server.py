"""The end that encodes: one media encoder, a cache of features, and the callers that wait.

It knows no transport. Media that several callers wait for at once are encoded once, and media
without a caller are not started.
"""

import threading
from collections.abc import Callable
from typing import TypeAlias

from vlmkit.errors import EngineError, VlmkitError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import CopiesToHost, MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.running.engine_loop.encoder_threads import EncoderThreads, Key
from vlmkit.running.engine_loop.feature_cache import FeatureCache
from vlmkit.running.faults.attribution import UNKNOWN, Fault
from vlmkit.running.faults.isolation import engine_error

OnResult: TypeAlias = Callable[[MediaFeatures | VlmkitError], None]


class EncoderServer:
    """Encodes media for other processes; may be called from any thread.

    Args:
        encoder: encodes; closed by :meth:`close`.
        cache_bytes: memory for features, so that the same medium is not encoded again.
        on_failure: called in another thread when the encoder broke in a way that is no Exception,
            such as a panic of a library; nothing is encoded any more.
    """

    def __init__(
        self,
        encoder: MediaEncoder,
        cache_bytes: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._encoder = encoder
        self._on_failure = on_failure
        self._is_closed = False
        self._threads = EncoderThreads(encoder, self._take)
        self._cache = FeatureCache(cache_bytes)
        self._lock = threading.Lock()
        self._waiting: dict[Key, list[OnResult]] = {}
        self.identity = encoder.identity
        self.media_kinds = encoder.media_kinds
        self.num_encoded = 0

    @property
    def num_open(self) -> int:
        """Number of callers that wait."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    @property
    def cached_bytes(self) -> int:
        """Memory of the cached features."""
        with self._lock:
            return self._cache.num_bytes

    def cached(self, scope: bytes, digest: bytes) -> MediaFeatures | None:
        """Return cached features, or None."""
        with self._lock:
            return self._cache.get(scope, digest)

    def start(self, scope: bytes, slot: MediaSlot, on_result: OnResult) -> None:
        """Encode a medium.

        Args:
            scope: its cache scope.
            slot: the medium.
            on_result: called once in another thread, with its features or its error, unless
                :meth:`cancel` comes first.
        """
        key = (scope, slot.digest)
        with self._lock:
            is_closed, is_new = self._is_closed, key not in self._waiting
            if not is_closed:
                self._waiting.setdefault(key, []).append(on_result)
        if is_closed:
            on_result(_closed())
        elif is_new:
            self._threads.put({key: slot})

    def cancel(self, scope: bytes, digest: bytes, on_result: OnResult) -> None:
        """Forget a caller; harmless after its result."""
        key = (scope, digest)
        with self._lock:
            callers = self._waiting.get(key, [])
            if on_result in callers:
                callers.remove(on_result)
                if not callers and self._threads.cancel(key):
                    del self._waiting[key]

    def close(self, timeout_s: float) -> None:
        """End the threads, and free the memory; callers that wait get an error.

        An encoder that is still busy after ``timeout_s`` is not closed.
        """
        self._fail_all()
        if self._threads.join(timeout_s):
            self._encoder.close()

    def _fail_all(self) -> None:
        self._threads.stop()
        with self._lock:
            self._is_closed = True
            callers = [each for waiting in self._waiting.values() for each in waiting]
            self._waiting.clear()
        for on_result in callers:
            on_result(_closed())

    def _take(self) -> None:
        """Give results to the callers that wait; runs in the threads of the encoder."""
        try:
            results = self._threads.take()
        except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
            self._fail_all()
            self._on_failure(error)
            return
        for key, found, _ in results:
            result = self._result(found)
            with self._lock:
                if isinstance(result, MediaFeatures):
                    self.num_encoded += 1
                    self._cache.put(*key, result)
                callers = self._waiting.pop(key, [])
            for on_result in callers:
                on_result(result)

    def _result(self, found: MediaFeatures | Exception) -> MediaFeatures | VlmkitError:
        """Return features that can be sent, or an error for the caller."""
        try:
            if isinstance(found, MediaFeatures):
                encoder = self._encoder
                return encoder.to_host(found) if isinstance(encoder, CopiesToHost) else found
        except Exception as error:  # noqa: BLE001 - a device may fail in any way
            found = error
        if isinstance(found, Fault):
            return found.attributed_to(UNKNOWN)
        return engine_error("the media encoder failed", found)


def _closed() -> EngineError:
    return EngineError("the encoder is closed", hint="try again later")
