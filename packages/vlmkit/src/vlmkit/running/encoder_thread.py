"""The thread in which a pipeline's media encoder runs, beside the loop.

Takes media, gives back features or what went wrong with each. Whatever waits when the encoder
becomes free is its next batch. Knows no requests and no caches.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence as Seq

from vlmkit.ask.stage import Stage
from vlmkit.errors import EngineError
from vlmkit.running.blame import Fault
from vlmkit.running.isolation import isolated
from vlmkit.seams.features import MediaFeatures
from vlmkit.seams.media_encoder import MediaEncoder
from vlmkit.seams.prompt import MediaSlot

Key = tuple[bytes, bytes]
"""A medium in a scope: the sequence's scope and the slot's digest."""


Result = tuple[Key, MediaFeatures | Exception, Stage]
"""A medium, what came of it, and how long its batch took."""


class EncoderThread:
    """Encodes one batch after the other; its thread starts with the first medium.

    Args:
        encoder: encodes; None fails every medium.
        on_results: called in this thread when there is something to take.
    """

    def __init__(self, encoder: MediaEncoder | None, on_results: Callable[[], None]) -> None:
        self._encoder = encoder
        self._on_results = on_results
        self._bell = threading.Condition()
        self._queue: dict[Key, MediaSlot] = {}
        self._results: list[Result] = []
        self._panic: BaseException | None = None
        self._is_stopped = False
        self._thread: threading.Thread | None = None
        self.since = 0.0  # when the present batch was begun, by perf_counter; 0 without one
        self.batch: Mapping[Key, MediaSlot] = {}

    @property
    def ident(self) -> int | None:
        """The thread's, once there is one."""
        return None if self._thread is None else self._thread.ident

    def put(self, slots: Mapping[Key, MediaSlot]) -> None:
        """Encode media, soon and together."""
        with self._bell:
            if self._is_stopped or not slots:
                return
            self._queue.update(slots)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="vlmkit-encode", daemon=True)
                self._thread.start()
            self._bell.notify()

    def cancel(self, key: Key) -> bool:
        """Forget a medium that waits; False if it is being encoded or is done."""
        with self._bell:
            return self._queue.pop(key, None) is not None

    def take(self) -> list[Result]:
        """Return what was encoded since the last call, and what went wrong with the others.

        Raises:
            BaseException: the encoder broke in a way that is no Exception.
        """
        with self._bell:
            if self._panic is not None:
                raise self._panic
            results, self._results = self._results, []
            return results

    def stop(self) -> None:
        """Forget what waits and what was not taken; the thread ends after its batch."""
        with self._bell:
            self._is_stopped = True
            self._queue.clear()
            self._results.clear()
            self._bell.notify()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the encoder does nothing more, and tell; call :meth:`stop` before."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._encode_next():
                self._on_results()
        except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
            self._panic = error
            self._on_results()

    def _encode_next(self) -> bool:  # a frame of its own, so that an idle thread holds no media
        """Wait for media and encode all that are there; False at the end."""
        with self._bell:
            self._bell.wait_for(lambda: self._queue or self._is_stopped)
            batch, self._queue = self._queue, {}
        began_s = time.time()
        self.batch, self.since = batch, time.perf_counter()
        results = isolated(self._encode, list(batch.values())) if batch else []
        self.batch, self.since = {}, 0.0
        stage = Stage.since(began_s)
        with self._bell:
            if not self._is_stopped:
                self._results += (
                    (key, result, stage) for key, result in zip(batch, results, strict=True)
                )
            return not self._is_stopped

    def _encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        if self._encoder is None:
            raise EngineError("this pipeline has no media encoder")
        features = list(self._encoder.encode(slots))
        found, wanted = [f.num_tokens for f in features], [slot.num_features for slot in slots]
        if found != wanted:
            raise Fault("media_encoder", f"returned {found} features, expected {wanted}")
        return features
