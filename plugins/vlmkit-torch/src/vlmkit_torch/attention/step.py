"""What one forward pass looks like to a layer's attention: where it writes and what it reads.

A step is flat: ``[1, tokens]``, first one token of each decoding sequence, then the chunks of
prefilling ones. What is read is laid out once for each kind of layer, not once for each layer.
"""

from collections.abc import Iterable, Sequence as Seq
from itertools import accumulate

import numpy as np
import torch

from vlmkit_torch.attention import key_ranges
from vlmkit_torch.attention.grouping import Costs
from vlmkit_torch.attention.key_ranges import Reach, Source
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.devices.uploads import Uploads


class Reaches:
    """What a step reads in layers of one kind: decodes in batches, then chunk by chunk."""

    __slots__ = ("chunks", "decodes")

    def __init__(self, decodes: list[Reach], chunks: list[Reach]) -> None:
        self.decodes = decodes
        self.chunks = chunks


class Step:
    """One forward pass.

    Args:
        decodes: sequences of which one token is new.
        chunks: the others.
        costs: of reading.
        zero_slot: the cache slot that is always zero.
        uploads: take what is laid out to the device; the caller sends it.
    """

    def __init__(
        self,
        decodes: Seq[Source],
        chunks: Seq[Source],
        costs: Costs,
        zero_slot: int,
        uploads: Uploads,
    ) -> None:
        self._decodes = decodes
        self._chunks = chunks
        self._costs = costs
        self._zero_slot = zero_slot
        self._reaches: dict[LayerKind, Reaches] = {}
        sources = (*decodes, *chunks)
        writes = np.concatenate([source.slots[source.first :] for source in sources])
        self.write_slots: torch.Tensor = uploads.add(writes)

    def lay_out(self, kinds: Iterable[LayerKind], uploads: Uploads) -> None:
        """Lay out what layers of some kinds read; the caller sends it."""
        for kind in kinds:
            counts = (source.num_tokens for source in self._chunks)
            rows = accumulate(counts, initial=len(self._decodes))
            self._reaches[kind] = Reaches(
                key_ranges.of_decodes(kind, self._decodes, self._costs, self._zero_slot, uploads),
                [
                    key_ranges.of_chunk(kind, row, source, uploads)
                    for row, source in zip(rows, self._chunks, strict=False)
                ],
            )

    def reaches(self, kind: LayerKind) -> Reaches:
        """Return what layers of a kind read."""
        if kind not in self._reaches:  # the first time that a layer is computed
            uploads = Uploads(self.write_slots.device)
            self.lay_out([kind], uploads)
            uploads.send()
        return self._reaches[kind]
