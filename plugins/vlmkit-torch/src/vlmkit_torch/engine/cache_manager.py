"""Admits sequences: blocks of the paged cache, images for cross-attention, shared prefixes.

Stores no keys or values; ``cache`` and ``cross_attention`` do.
"""

from functools import partial

import torch

from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool
from vlmkit_torch.cross_attention.image_cache import ImageCache
from vlmkit_torch.devices import hardware
from vlmkit_torch.engine.non_finite import NonFiniteTracker


class CacheManager:
    """Gives sequences room in the caches of one engine.

    Attributes:
        pool: the blocks of the paged cache.
        images: keys and values of images for cross-attention; None for other models.
        non_finite: tracks sequences whose blocks must not be shared.

    Args:
        pool: see above.
        images: see above.
        max_sequences: most sequences at once.
        device: that computes.
    """

    def __init__(
        self,
        pool: BlockPool,
        images: ImageCache | None,
        max_sequences: int,
        device: torch.device,
    ) -> None:
        self.pool = pool
        self.images = images
        self.non_finite = NonFiniteTracker(max_sequences, device)
        self._max_sequences = max_sequences
        self._device = device
        self._committed: dict[SequenceView, int] = {}  # tokens that may not be shared yet

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Make room, reusing a cached prefix; see :meth:`vlmkit.interfaces.engine.Cache.admit`."""
        if self.pool.num_sequences >= self._max_sequences:
            return None
        with hardware.exclusive(self._device):
            self._share_committed()
        images = self.images
        if images is None:
            return self.pool.admit(sequence)
        admission = self.pool.admit(sequence, usable=partial(images.usable_tokens, sequence))
        if admission is not None and not images.admit(sequence, admission.num_cached):
            self.pool.release(sequence)
            return None
        return admission

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let the first ``num_tokens`` be shared, unless they have values that are not finite.

        The check waits for the device, so it is put off until a sequence is admitted or released.
        """
        if self.pool.shares_prefixes:
            self._committed[sequence] = num_tokens

    def release(self, sequence: SequenceView) -> None:
        """Release an admitted sequence's room."""
        with hardware.exclusive(self._device):
            self._share_committed()
            if self.images is not None:
                is_finite = sequence not in self.non_finite.sequences()
                self.images.release(sequence, is_finite=is_finite)
            self.non_finite.forget(sequence)
        self.pool.release(sequence)

    def clear(self) -> None:
        """Free the images, and forget what was committed."""
        if self.images is not None:
            self.images.free()
        self._committed.clear()

    def _share_committed(self) -> None:
        if not self._committed:
            return
        non_finite = self.non_finite.sequences()
        for sequence, num_tokens in self._committed.items():
            if sequence not in non_finite:
                self.pool.commit(sequence, num_tokens)
        self._committed.clear()
