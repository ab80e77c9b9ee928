"""The media that are encoded or wait for it, and the sequences that wait for each.

It runs in the loop's thread; the encoder runs in threads of its own. A medium that several
sequences share is encoded once. A medium that no sequence waits for any more is not started.
"""

import copy
from collections.abc import Callable, Iterable, Sequence as Seq

from vlmkit.errors import MediaError, VlmkitError
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import EncodeItem, WorkItem
from vlmkit.running.engine_loop.encoder_threads import EncoderThreads, Key
from vlmkit.running.engine_loop.feature_cache import FeatureCache
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames, Fault
from vlmkit.running.faults.isolation import engine_error
from vlmkit.types.stage import NO_STAGE


class EncoderQueue:
    """Gives sequences the features of their media.

    Args:
        encoder: encodes media; None for a text model.
        cache: the features of earlier media.
        on_results: called in another thread when :meth:`take` has results.
        component_names: what errors call the encoder.
    """

    def __init__(
        self,
        encoder: MediaEncoder | None,
        cache: FeatureCache,
        on_results: Callable[[], None],
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._component_names = component_names
        self._threads = EncoderThreads(encoder, on_results)
        self._cache = cache
        self._waiting: dict[Key, set[EncodeItem]] = {}
        self.num_encoded = 0

    @property
    def is_busy(self) -> bool:
        """Whether any medium is being encoded or waits for it."""
        return bool(self._waiting)

    def start(self, items: Seq[EncodeItem]) -> bool:
        """Give sequences their cached features, and start the encoding of all other media.

        Returns:
            Whether anything changed: a sequence got features, or a medium was new.
        """
        new: dict[Key, MediaSlot] = {}
        news = [self._start(item, new) for item in items]
        self._threads.put(new)
        return any(news)

    def take(self) -> dict[Sequence, VlmkitError]:
        """Give sequences their new features; return the error of each sequence that failed."""
        failures: dict[Sequence, VlmkitError] = {}
        for key, result, stage in self._threads.take():
            items = self._waiting.pop(key, set())
            if isinstance(result, Exception):
                kinds = {item.sequence.prompt.media[item.index].kind for item in items}
                what = f"this {kinds.pop()}" if kinds else "a medium that no request waits for"
                error = (
                    result.attributed_to(self._component_names)
                    if isinstance(result, Fault)
                    else engine_error(
                        f"{self._component_names.of('media_encoder')} failed on {what}", result
                    )
                )
                failures.update((item.sequence, _of_item(error, item)) for item in items)
            else:
                self.num_encoded += 1
                self._cache.put(*key, result)
            for item in items:
                item.sequence.encoding.discard(item.index)
                if not isinstance(result, Exception):
                    item.sequence.features[item.index] = result
                    item.sequence.encoded[item.index] = stage
        return failures

    def forget(self, sequence: Sequence) -> None:
        """Drop the media of a sequence that ended or was preempted."""
        for index in sequence.encoding:
            key = _key(sequence, index)
            items = self._waiting[key]
            items.discard(EncodeItem(sequence, index))
            if not items and self._threads.cancel(key):
                del self._waiting[key]
        sequence.encoding.clear()

    def stop(self) -> None:
        """Start no more encodings."""
        self._threads.stop()
        self._waiting.clear()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the encoder's threads to end, after :meth:`stop`; return whether they have."""
        return self._threads.join(timeout_s)

    # Read by the watchdog's thread. Of several batches, it watches the oldest.

    @property
    def since(self) -> float:
        """When the oldest batch began, by ``perf_counter``; 0 while there is none."""
        batch = self._threads.oldest_batch
        return 0.0 if batch is None else batch.since

    @property
    def ident(self) -> int | None:
        """The identifier of the thread of the oldest batch."""
        batch = self._threads.oldest_batch
        return None if batch is None else batch.ident

    @property
    def present(self) -> dict[Key, MediaSlot]:
        """The media of the oldest batch."""
        batch = self._threads.oldest_batch
        return {} if batch is None else dict(batch.slots)

    def waiting(self, keys: Iterable[Key]) -> list[Sequence]:
        """Return the sequences that wait for some media."""
        return [item.sequence for key in keys for item in list(self._waiting.get(key, ()))]

    def _start(self, item: EncodeItem, new: dict[Key, MediaSlot]) -> bool:
        sequence, index = item.sequence, item.index
        if index in sequence.features or index in sequence.encoding:
            return False
        key = _key(sequence, index)
        if key not in self._waiting:
            if (features := self._cache.get(*key)) is not None:
                sequence.features[index] = features
                return True
            self._waiting[key] = set()
            new[key] = sequence.prompt.media[index]
        self._waiting[key].add(item)
        sequence.encoding.add(index)
        sequence.encoded[index] = NO_STAGE
        return True


def waits(item: WorkItem) -> bool:
    """Return whether an item needs a medium that is still being encoded."""
    media = item.sequence.prompt.media
    return any(
        media[index].start < item.stop and media[index].stop > item.start
        for index in item.sequence.encoding
    )


def _key(sequence: Sequence, index: int) -> Key:
    return sequence.scope, sequence.prompt.media[index].digest


def _of_item(error: VlmkitError, item: EncodeItem) -> VlmkitError:
    """Return the error with the medium's index in the sequence that gets it."""
    if not isinstance(error, MediaError):
        return error
    own = copy.copy(error)  # sequences that share a medium may have it at different indexes
    own.index = item.index
    own.param = own.param or "messages"
    return own
