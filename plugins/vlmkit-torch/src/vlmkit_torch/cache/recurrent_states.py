"""States of recurrent layers: linear attention, Mamba and convolutions.

transformers stores such states in its own cache. Before a forward pass, its layers are filled with
the states of the sequences; afterwards the states are read out. The states before and after each
sequence's newest item are kept, so that a step may be repeated. No other module uses transformers'
cache classes.
"""

from collections.abc import Sequence as Seq
from typing import Any, TypeAlias

import torch
from transformers import cache_utils

from vlmkit.errors import EngineError
from vlmkit.interfaces.view import SequenceView

# transformers' cache classes have no types to check against.
_CacheLayer: Any = cache_utils.CacheLayerMixin
_LinearLayer: Any = cache_utils.LinearAttentionLayer

STATEFUL = frozenset({"linear_attention", "mamba", "conv", "hybrid"})  # hybrid: and attention
State: TypeAlias = list[torch.Tensor | None]  # of one sequence: convolution, then recurrent states


class RecurrentStates:
    """The states of all admitted sequences of one engine.

    Args:
        layer_types: the family's names of its layers, in order.
    """

    def __init__(self, layer_types: Seq[str]) -> None:
        self._layers: dict[int, _StateLayer] = {}
        layers: list[Any] = []
        for index, name in enumerate(layer_types):
            layer = _make_layer(name)
            layers.append(layer)
            if isinstance(layer, _StateLayer):
                self._layers[index] = layer
        self.cache = cache_utils.Cache(layers=layers)
        self._kept: dict[SequenceView, dict[int, list[State]]] = {}

    def load(self, sequences: Seq[SequenceView], starts: Seq[int]) -> None:
        """Fill the cache with the states of sequences after ``starts`` tokens.

        Either all sequences are new, or none is.

        Raises:
            EngineError: the state after that many tokens is not stored.
        """
        found: list[list[State] | None] = []
        for sequence, start in zip(sequences, starts, strict=True):
            states = self._kept.get(sequence, {}).get(start)
            if start and states is None:
                raise EngineError(f"the recurrent state after {start} tokens is not kept")
            found.append(states)
        for number, layer in enumerate(self._layers.values()):
            layer.load([None if states is None else states[number] for states in found])

    def save(self, sequences: Seq[SequenceView], starts: Seq[int], stops: Seq[int]) -> None:
        """Store the cache's current states as those after ``stops`` tokens."""
        for row, (sequence, start, stop) in enumerate(zip(sequences, starts, stops, strict=True)):
            kept = self._kept.get(sequence, {})
            before = {start: kept[start]} if start in kept else {}
            self._kept[sequence] = {
                **before,
                stop: [layer.row(row) for layer in self._layers.values()],
            }

    def forget(self, sequence: SequenceView) -> None:
        """Drop everything about a sequence."""
        self._kept.pop(sequence, None)

    def num_bytes(self, sequence: SequenceView) -> int:
        """Return the bytes that are stored for a sequence."""
        kept = self._kept.get(sequence, {}).values()
        tensors = [each for layers in kept for state in layers for each in state]
        return sum(each.numel() * each.itemsize for each in tensors if each is not None)

    def clear(self) -> None:
        """Drop everything."""
        self._kept.clear()
        for layer in self._layers.values():
            layer.load([None])


def layer_types(config: Any) -> list[str]:
    """Return the family's names of its layers; empty if it has none."""
    return list(getattr(config, "layer_types", None) or ())


class _PassThrough(_CacheLayer):  # type: ignore[misc]
    """An attention layer of the cache: the attention function stores its keys and values."""

    is_sliding = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new keys and values as they are."""
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the sizes of an empty cache."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Return the length of an empty cache."""
        return 0

    def get_max_length(self) -> int:
        """Return that there is no bound."""
        return -1


class _StateLayer(_LinearLayer):  # type: ignore[misc]
    """transformers' own state layer, filled with rows of several sequences."""

    def load(self, states: Seq[State | None]) -> None:
        """Load one state for each sequence; None for new sequences."""
        count = self.number_of_states
        for number in range(count):
            self._fill(number, self.conv_states, self.is_conv_states_initialized, states, number)
            self._fill(
                number,
                self.recurrent_states,
                self.is_recurrent_states_initialized,
                states,
                count + number,
            )
            conv = self.conv_states[number]
            self.conv_kernel_size[number] = None if conv is None else conv.shape[-1]
            self.has_previous_state[number] = bool(states) and states[0] is not None

    def row(self, row: int) -> State:
        """Return the state of one sequence."""
        both = (*self.conv_states.values(), *self.recurrent_states.values())
        return [None if value is None else value[row : row + 1] for value in both]

    def _fill(
        self,
        number: int,
        values: dict[int, torch.Tensor | None],
        flags: dict[int, bool],
        states: Seq[State | None],
        index: int,
    ) -> None:
        rows = [state[index] for state in states if state is not None]
        present = [row for row in rows if row is not None]
        # A copy, because the layer writes in place and the stored state must not change.
        values[number] = torch.cat(present) if present else None
        flags[number] = bool(present)


class _Hybrid(_StateLayer, _PassThrough):
    """Attention and a state side by side in one layer."""


def _make_layer(name: str) -> Any:
    if name == "hybrid":
        return _Hybrid()
    return _StateLayer() if name in STATEFUL else _PassThrough()
