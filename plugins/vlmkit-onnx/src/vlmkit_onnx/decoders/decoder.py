"""What runs a decoder graph over the slots of a cache: the words, not the doing.

A slot is one sequence's place. Axes: ``rows`` neighbouring slots, ``seq`` new tokens of each.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import EngineError
from vlmkit_onnx.slots.memory import Memory

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """What a graph says of itself.

    Attributes:
        num_layers: layers that keep keys and values.
        vocab_size: columns of the logits.
        hidden_size: width of an embedding; 0 where the decoder takes token ids.
        num_position_axes: rows of the positions: 1, or 3 for time, height and width; 0 where the
            graph takes no positions.
        num_deepstack: levels of image rows that are added inside.
        takes_bias: whether the host makes the attention masks.
        max_rows: tokens of a chunk that may have logits each.
        states_size: columns of hidden states; 0 where the graph gives none.
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
        """Return image rows of tokens that have none, ``[levels, rows, tokens, hidden]``, or None.

        None is for a decoder that takes no such rows.
        """
        if not self.num_deepstack:
            return None
        return np.zeros((self.num_deepstack, num_rows, num_tokens, self.hidden_size), np.float32)


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of some rows.

    Attributes:
        ids: ``[rows, seq]``.
        embeddings: ``[rows, seq, hidden]``; None where the decoder takes token ids.
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
        """The embeddings, which must be there."""
        if self.embeddings is None:
            raise EngineError("the decoder takes embeddings, and got token ids")
        return self.embeddings


class Decoder(Protocol):
    """Computes tokens of slots, writing their keys and values into the slot memory.

    The logits that it returns are its own: the next call writes over them.
    """

    spec: DecoderSpec

    @property
    def memory(self) -> Memory:
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
            starts: ``[rows]`` how many tokens each slot holds; the new one is written there.
            tokens: ``[rows, 1]``.

        Returns:
            ``[rows, vocab]``, the logits.
        """
        ...

    def close(self) -> None:
        """Free what the decoder holds."""
        ...


class StatesDecoder(Decoder, Protocol):
    """A decoder whose spec has a size of states."""

    def prefill_states(self, slot: int, start: int, tokens: Tokens, num_rows: int) -> Floats:
        """Append a chunk as :meth:`Decoder.prefill` does.

        Returns:
            ``[num_rows, states]``, the hidden states of the last tokens: as many as are wanted.
        """
        ...
