"""The attention of one forward pass: the cache slots that it writes and reads.

A step is flat: ``[1, tokens]``, first one token of each decoding sequence, then the chunks of
prefilling ones. Reads are laid out once for each kind of layer, not once for each layer.
"""

from collections.abc import Iterable, Sequence as Seq
from itertools import accumulate

import numpy as np
import torch

from vlmkit_torch.attention.grouping import ReadCosts
from vlmkit_torch.attention.key_ranges import KeyRange, NewTokens, chunk_range, decode_ranges
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.devices.uploads import Uploads


class KeyRanges:
    """What a step reads in layers of one kind: decodes in batches, then chunk by chunk."""

    __slots__ = ("chunks", "decodes")

    def __init__(self, decodes: list[KeyRange], chunks: list[KeyRange]) -> None:
        self.decodes = decodes
        self.chunks = chunks


class Step:
    """One forward pass.

    Args:
        decodes: sequences with one new token each.
        chunks: the others.
        costs: of reading.
        zero_slot: the cache slot that is always zero.
        uploads: carries index arrays to the device; the caller sends it.
    """

    def __init__(
        self,
        decodes: Seq[NewTokens],
        chunks: Seq[NewTokens],
        costs: ReadCosts,
        zero_slot: int,
        uploads: Uploads,
    ) -> None:
        self._decodes = decodes
        self._chunks = chunks
        self._costs = costs
        self._zero_slot = zero_slot
        self._key_ranges: dict[LayerKind, KeyRanges] = {}
        sources = (*decodes, *chunks)
        writes = np.concatenate([source.slots[source.first :] for source in sources])
        self.write_slots: torch.Tensor = uploads.add(writes)

    def lay_out(self, kinds: Iterable[LayerKind], uploads: Uploads) -> None:
        """Lay out what layers of some kinds read; the caller sends ``uploads``."""
        for kind in kinds:
            counts = (source.num_tokens for source in self._chunks)
            rows = accumulate(counts, initial=len(self._decodes))
            self._key_ranges[kind] = KeyRanges(
                decode_ranges(kind, self._decodes, self._costs, self._zero_slot, uploads),
                [
                    chunk_range(kind, row, source, uploads)
                    for row, source in zip(rows, self._chunks, strict=False)
                ],
            )

    def key_ranges(self, kind: LayerKind) -> KeyRanges:
        """Return what layers of a kind read."""
        if kind not in self._key_ranges:  # the first time that such a layer is computed
            uploads = Uploads(self.write_slots.device)
            self.lay_out([kind], uploads)
            uploads.send()
        return self._key_ranges[kind]
