"""The thread in which a pipeline's media encoder runs, beside the loop.

It takes media and returns the features or the error of each. All media that wait when the encoder
becomes free are its next batch. The thread ends when none wait: numeric libraries keep worker
threads for each thread that called them, which would slow down the loop's permanently. Requests and
caches are in :mod:`.encoder_queue`.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence as Seq

from vlmkit.errors import EngineError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.running.faults.attribution import Fault
from vlmkit.running.faults.isolation import isolated
from vlmkit.types.stage import Stage

Key = tuple[bytes, bytes]
"""A medium in a cache scope: the sequence's scope and the slot's digest."""


Result = tuple[Key, MediaFeatures | Exception, Stage]
"""A medium, its features or its error, and how long its batch took."""


class EncoderThread:
    """Encodes one batch after another, in a thread that exists while media wait.

    Args:
        encoder: encodes; None fails every medium.
        on_results: called in this thread when there is something to take.
    """

    def __init__(self, encoder: MediaEncoder | None, on_results: Callable[[], None]) -> None:
        self._encoder = encoder
        self._on_results = on_results
        self._lock = threading.Lock()
        self._queue: dict[Key, MediaSlot] = {}
        self._results: list[Result] = []
        self._panic: BaseException | None = None
        self._is_stopped = False
        self._thread: threading.Thread | None = None
        self.since = 0.0  # when the present batch was begun, by perf_counter; 0 without one
        self.batch: Mapping[Key, MediaSlot] = {}

    @property
    def ident(self) -> int | None:
        """The thread's, while there is one."""
        thread = self._thread
        return None if thread is None else thread.ident

    def put(self, slots: Mapping[Key, MediaSlot]) -> None:
        """Encode media, soon and together."""
        with self._lock:
            if self._is_stopped or not slots:
                return
            self._queue.update(slots)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="vlmkit-encode", daemon=True)
                self._thread.start()

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
        """Forget what waits and what was not taken; the thread ends after its batch."""
        with self._lock:
            self._is_stopped = True
            self._queue.clear()
            self._results.clear()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended, and return whether it has; call :meth:`stop` first."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        try:
            while self._encode_next():
                self._on_results()
        except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
            self._panic = error
            self._on_results()

    def _encode_next(self) -> bool:
        """Encode all media that wait; return False if there are none."""
        with self._lock:
            batch, self._queue = self._queue, {}
            if not batch:
                self._thread = None
                return False
        began_s = time.time()
        self.batch, self.since = batch, time.perf_counter()
        results = isolated(self._encode, list(batch.values()))
        self.batch, self.since = {}, 0.0
        stage = Stage.since(began_s)
        with self._lock:
            if not self._is_stopped:
                self._results += (
                    (key, result, stage) for key, result in zip(batch, results, strict=True)
                )
        return True

    def _encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        if self._encoder is None:
            raise EngineError("this pipeline has no media encoder")
        features = list(self._encoder.encode(slots))
        found, wanted = [f.num_tokens for f in features], [slot.num_features for slot in slots]
        if found != wanted:
            raise Fault("media_encoder", f"returned {found} features, expected {wanted}")
        return features
