"""The interface of drivers that run a decoder graph over the slots of a cache.

A slot stores one sequence. Axes: ``rows`` adjacent slots, ``seq`` new tokens of each.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import EngineError
from vlmkit_onnx.slots.memory import SlotMemory

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """The declarations of a graph.

    Attributes:
        num_layers: layers that store keys and values.
        vocab_size: columns of the logits.
        hidden_size: width of an embedding; 0 if the decoder takes token ids.
        num_position_axes: rows of the positions: 1, or 3 for time, height and width; 0 if the
            graph takes no positions.
        num_deepstack: levels of image rows that are added inside.
        takes_bias: whether the host builds the attention masks.
        max_rows: most tokens of a chunk with logits.
        states_size: columns of hidden states; 0 if the graph returns none.
    """

    num_layers: int
    vocab_size: int
    hidden_size: int
    num_position_axes: int = 1
    num_deepstack: int = 0
    takes_bias: bool = False
    max_rows: int = 1
    states_size: int = 0

    @property
    def takes_embeddings(self) -> bool:
        """Whether tokens arrive as embeddings."""
        return self.hidden_size > 0

    def no_deepstack(self, num_rows: int, num_tokens: int) -> Floats | None:
        """Return zero deepstack rows ``[levels, rows, tokens, hidden]``.

        None if the decoder takes no such rows.
        """
        if not self.num_deepstack:
            return None
        return np.zeros((self.num_deepstack, num_rows, num_tokens, self.hidden_size), np.float32)


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of some rows.

    Attributes:
        ids: ``[rows, seq]``.
        embeddings: ``[rows, seq, hidden]``; None if the decoder takes token ids.
        positions: ``[axes, rows, seq]``.
        extras: further inputs by name: ``deepstack``, ``attention_bias``,
            ``attention_bias_local``.
    """

    ids: Integers
    embeddings: Floats | None
    positions: Integers
    extras: dict[str, Floats] = field(default_factory=dict)

    @property
    def rows(self) -> Floats:
        """The embeddings, which must be present."""
        if self.embeddings is None:
            raise EngineError("the decoder takes embeddings, and got token ids")
        return self.embeddings


class Decoder(Protocol):
    """Computes tokens of slots, and writes their keys and values into the slot memory.

    The next call overwrites the logits of the previous one.
    """

    spec: DecoderSpec

    @property
    def memory(self) -> SlotMemory:
        """The cache."""
        ...

    def prefill(self, slot: int, start: int, tokens: Tokens, num_rows: int) -> Floats:
        """Append a chunk to one slot that holds ``start`` tokens.

        Returns:
            ``[num_rows, vocab]``, the logits of the last tokens; as many as the spec allows.
        """
        ...

    def decode(self, first_slot: int, starts: NDArray[np.int32], tokens: Tokens) -> Floats:
        """Append one token to each of the slots from ``first_slot`` on.

        Args:
            first_slot: of the first row.
            starts: ``[rows]`` tokens of each slot, and the index of the new one.
            tokens: ``[rows, 1]``.

        Returns:
            ``[rows, vocab]``, the logits.
        """
        ...

    def close(self) -> None:
        """Free the graph and the cache."""
        ...


class StatesDecoder(Decoder, Protocol):
    """A decoder that can return hidden states: its spec has a ``states_size``."""

    def prefill_states(self, slot: int, start: int, tokens: Tokens, num_rows: int) -> Floats:
        """Append a chunk; see :meth:`Decoder.prefill`.

        Returns:
            ``[num_rows, states]``, the hidden states of the last tokens.
        """
        ...
