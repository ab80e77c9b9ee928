"""What the caches of one worker probably hold, judged by the prompts that it was sent.

An estimate that is wrong costs time and changes no answer.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence as Seq

from vlmkit.running.fleet.prompt_keys import Segment

MAX_ENTRIES = 100_000


class CacheEstimate:
    """The least recently used prompts leave, as in the cache of the worker. Thread-safe.

    Args:
        capacity_tokens: size of the worker's prefix cache.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._lock = threading.Lock()
        self._prefixes: OrderedDict[bytes, int] = OrderedDict()
        self._images: OrderedDict[bytes, int] = OrderedDict()
        self._num_tokens = 0

    def held_tokens(self, segments: Seq[Segment], sizes: Seq[int]) -> int:
        """Return how many tokens of a prompt the worker holds.

        These are the tokens of the longest known prefix, and of known images after it, whose
        features need no encoding.

        Args:
            segments: the parts of the prompt.
            sizes: the number of tokens of each part.
        """
        held, is_prefix = 0, True
        with self._lock:
            for segment, size in zip(segments, sizes, strict=True):
                is_prefix = is_prefix and segment.key in self._prefixes
                if is_prefix or (segment.image and segment.image in self._images):
                    held += size
        return held

    def add(self, segments: Seq[Segment], sizes: Seq[int]) -> None:
        """Note that the worker computes a prompt; of a prefix, the end leaves first."""
        with self._lock:
            for segment, size in reversed([*zip(segments, sizes, strict=True)]):
                self._num_tokens += size - self._prefixes.pop(segment.key, 0)
                self._prefixes[segment.key] = size
                if segment.image:
                    self._images.pop(segment.image, None)
                    self._images[segment.image] = size
            while self._prefixes and self._is_over():
                _, size = self._prefixes.popitem(last=False)
                self._num_tokens -= size
            while len(self._images) > MAX_ENTRIES:
                self._images.popitem(last=False)

    def _is_over(self) -> bool:
        return self._num_tokens > self._capacity_tokens or len(self._prefixes) > MAX_ENTRIES


class TokenSizes:
    """Estimates the tokens of parts of prompts, and learns from the demands of requests."""

    def __init__(self) -> None:
        self._tokens_per_char = 0.25
        self._image_tokens = 256.0
        self._images: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, segments: Seq[Segment]) -> list[int]:
        """Return the estimated number of tokens of each part, at least one."""
        with self._lock:
            return [max(1, self._size(segment)) for segment in segments]

    def _size(self, segment: Segment) -> int:
        if segment.image:
            return self._images.get(segment.image, round(self._image_tokens))
        return segment.num_tokens or round(segment.num_chars * self._tokens_per_char)

    def learn(self, segments: Seq[Segment], text_tokens: int, image_tokens: Seq[int]) -> None:
        """Take over what a worker reports of a prompt."""
        images = [each.image for each in segments if each.image]
        num_chars = sum(each.num_chars for each in segments)
        with self._lock:
            if num_chars and not any(each.num_tokens for each in segments):
                ratio = min(4.0, text_tokens / num_chars)
                self._tokens_per_char += 0.1 * (ratio - self._tokens_per_char)
            for num_tokens in image_tokens:
                self._image_tokens += 0.1 * (num_tokens - self._image_tokens)
            if len(images) == len(image_tokens):
                for image, num_tokens in zip(images, image_tokens, strict=True):
                    self._images[image] = num_tokens
            while len(self._images) > MAX_ENTRIES:
                self._images.popitem(last=False)
