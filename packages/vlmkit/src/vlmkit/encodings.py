"""Images on their way through the encoder, and the sequences that wait for each of them.

Lives in the loop's thread; the encoder works in its own. An image that several sequences show is
encoded once, and one that nobody waits for any more is not begun.
"""

from collections.abc import Callable, Sequence as Seq

from vlmkit.encoder_thread import EncoderThread, Key
from vlmkit.errors import VlmkitError
from vlmkit.feature_cache import FeatureCache
from vlmkit.isolation import engine_error
from vlmkit.prompt import ImageSlot
from vlmkit.protocols import VisionEncoder
from vlmkit.sequence import Sequence
from vlmkit.step import EncodeItem, WorkItem


class Encodings:
    """Gets sequences the features of their images.

    Args:
        encoder: encodes images; None for a text model.
        cache: features of images that were seen before.
        on_results: called in another thread when :meth:`take` has something to do.
    """

    def __init__(
        self, encoder: VisionEncoder | None, cache: FeatureCache, on_results: Callable[[], None]
    ) -> None:
        self._thread = EncoderThread(encoder, on_results)
        self._cache = cache
        self._waiting: dict[Key, set[EncodeItem]] = {}
        self.num_encoded = 0

    @property
    def is_busy(self) -> bool:
        """Whether any image is being encoded, or is about to be."""
        return bool(self._waiting)

    def start(self, items: Seq[EncodeItem]) -> bool:
        """Hand out features that are kept and have the other images encoded.

        Returns:
            Whether any of it was news: features that were not there, or an image not yet asked for.
        """
        new: dict[Key, ImageSlot] = {}
        news = [self._start(item, new) for item in items]
        self._thread.put(new)
        return any(news)

    def take(self) -> dict[Sequence, VlmkitError]:
        """Hand out what was encoded; return the sequences that fail by it, with the reason."""
        failures: dict[Sequence, VlmkitError] = {}
        for key, result in self._thread.take():
            items = self._waiting.pop(key, set())
            if isinstance(result, Exception):
                error = engine_error("the vision encoder failed on this image", result)
                failures.update((item.sequence, error) for item in items)
            else:
                self.num_encoded += 1
                self._cache.put(*key, result)
            for sequence, image in items:
                sequence.encoding.discard(image)
                if not isinstance(result, Exception):
                    sequence.features[image] = result
        return failures

    def forget(self, sequence: Sequence) -> None:
        """Wait no longer for the images of a sequence that ended or lost its room."""
        for image in sequence.encoding:
            key = _key(sequence, image)
            items = self._waiting[key]
            items.discard(EncodeItem(sequence, image))
            if not items and self._thread.cancel(key):
                del self._waiting[key]
        sequence.encoding.clear()

    def stop(self) -> None:
        """Begin no other image."""
        self._thread.stop()
        self._waiting.clear()

    def join(self) -> None:
        """Wait for the encoder's thread to end, after :meth:`stop`."""
        self._thread.join()

    def _start(self, item: EncodeItem, new: dict[Key, ImageSlot]) -> bool:
        sequence, image = item
        if image in sequence.features or image in sequence.encoding:
            return False
        key = _key(sequence, image)
        if key not in self._waiting:
            if (features := self._cache.get(*key)) is not None:
                sequence.features[image] = features
                return True
            self._waiting[key] = set()
            new[key] = sequence.prompt.images[image]
        self._waiting[key].add(item)
        sequence.encoding.add(image)
        return True


def waits(item: WorkItem) -> bool:
    """Tell whether an item needs an image that is still being encoded."""
    images = item.sequence.prompt.images
    return any(
        images[image].start < item.stop and images[image].stop > item.start
        for image in item.sequence.encoding
    )


def _key(sequence: Sequence, image: int) -> Key:
    return sequence.tenant, sequence.prompt.images[image].digest
