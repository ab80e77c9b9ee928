"""Media on their way through the encoder, and the sequences that wait for each of them.

Lives in the loop's thread; the encoder works in its own. A medium that several sequences hold is
encoded once, and one that nobody waits for any more is not begun.
"""

import copy
from collections.abc import Callable, Iterable, Sequence as Seq

from vlmkit.errors import MediaError, VlmkitError
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import EncodeItem, WorkItem
from vlmkit.running.engine_loop.encoder_thread import EncoderThread, Key
from vlmkit.running.engine_loop.feature_cache import FeatureCache
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames, Fault
from vlmkit.running.faults.isolation import engine_error
from vlmkit.types.stage import NO_STAGE


class EncoderQueue:
    """Gets sequences the features of their media.

    Args:
        encoder: encodes media; None for a text model.
        cache: features of media that were there before.
        on_results: called in another thread when :meth:`take` has something to do.
        component_names: who made the encoder.
    """

    def __init__(
        self,
        encoder: MediaEncoder | None,
        cache: FeatureCache,
        on_results: Callable[[], None],
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._component_names = component_names
        self._thread = EncoderThread(encoder, on_results)
        self._cache = cache
        self._waiting: dict[Key, set[EncodeItem]] = {}
        self.num_encoded = 0

    @property
    def is_busy(self) -> bool:
        """Whether any medium is being encoded, or is about to be."""
        return bool(self._waiting)

    def start(self, items: Seq[EncodeItem]) -> bool:
        """Hand out features that are kept and have the other media encoded.

        Returns:
            Whether any of it was news: features that were not there, or a medium not yet asked for.
        """
        new: dict[Key, MediaSlot] = {}
        news = [self._start(item, new) for item in items]
        self._thread.put(new)
        return any(news)

    def take(self) -> dict[Sequence, VlmkitError]:
        """Hand out what was encoded; return the sequences that fail by it, with the reason."""
        failures: dict[Sequence, VlmkitError] = {}
        for key, result, stage in self._thread.take():
            items = self._waiting.pop(key, set())
            if isinstance(result, Exception):
                kinds = {item.sequence.prompt.media[item.index].kind for item in items}
                what = f"this {kinds.pop()}" if kinds else "a medium that nobody waits for"
                error = (
                    result.told(self._component_names)
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
        """Wait no longer for the media of a sequence that ended or lost its room."""
        for index in sequence.encoding:
            key = _key(sequence, index)
            items = self._waiting[key]
            items.discard(EncodeItem(sequence, index))
            if not items and self._thread.cancel(key):
                del self._waiting[key]
        sequence.encoding.clear()

    def stop(self) -> None:
        """Begin no other."""
        self._thread.stop()
        self._waiting.clear()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the encoder's thread to end, after :meth:`stop`, and tell whether it did."""
        return self._thread.join(timeout_s)

    # For who looks on from another thread.

    @property
    def since(self) -> float:
        """When what is being encoded was begun, by perf_counter; 0 while nothing is."""
        return self._thread.since

    @property
    def ident(self) -> int | None:
        """The encoder's thread."""
        return self._thread.ident

    @property
    def present(self) -> dict[Key, MediaSlot]:
        """What is being encoded."""
        return dict(self._thread.batch)

    def waiting(self, keys: Iterable[Key]) -> list[Sequence]:
        """Return who waits for some media."""
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
    """Tell whether an item needs a medium that is still being encoded."""
    media = item.sequence.prompt.media
    return any(
        media[index].start < item.stop and media[index].stop > item.start
        for index in item.sequence.encoding
    )


def _key(sequence: Sequence, index: int) -> Key:
    return sequence.scope, sequence.prompt.media[index].digest


def _of_item(error: VlmkitError, item: EncodeItem) -> VlmkitError:
    """Return an error that says which medium of its own sequence is refused."""
    if not isinstance(error, MediaError):
        return error
    own = copy.copy(error)  # the sequences that share a medium may show it in other places
    own.index = item.index
    own.param = own.param or "messages"
    return own
