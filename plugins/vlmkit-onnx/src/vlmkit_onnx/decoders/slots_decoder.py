"""Runs decoders of vlmkit's exporter: they take each row's length and write the cache in place.

Graph and slot memory are bound once for each run of adjacent slots. A step then fills the small
inputs and runs, without copying keys or values. On a CPU the small inputs are bound once, too. On a
device, ONNX Runtime copies them when they are bound, not when the graph runs, so they are bound
again in each step.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit_onnx.decoders.cache_nodes import bind_cache, cache_pairs, cache_state
from vlmkit_onnx.decoders.decoder import DecoderSpec, Floats, Tokens
from vlmkit_onnx.folder.layout import DecoderGraph
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.slots.device_memory import allocate
from vlmkit_onnx.slots.memory import CPU, CacheSize

MAX_ROWS = 17  # of a chunk: a token and 16 draft tokens
EXTRAS = ("attention_bias", "attention_bias_local", "deepstack", "hidden_indices")
REQUIRED = frozenset(
    {"inputs_embeds", "position_ids", "seqlens_k", "total_sequence_length", "logits_indices"}
)


class SlotsDecoder:
    """Implements :class:`vlmkit_onnx.decoders.decoder.Decoder`.

    Args:
        graph: states the names of its inputs.
        session: of the graph.
        size: of the cache, and its device.

    Raises:
        CheckpointError: the graph's inputs are not those of vlmkit's exporter.
    """

    def __init__(
        self, graph: DecoderGraph, session: onnxruntime.InferenceSession, size: CacheSize
    ) -> None:
        self._session = session
        self._copies_inputs = size.device != CPU
        inputs = {node.name: node for node in session.get_inputs()}
        outputs = {node.name: node for node in session.get_outputs()}
        self._present = cache_pairs(graph, inputs, outputs)
        states = {name: cache_state(graph, inputs[name]) for name in self._present}
        self.spec = _spec(graph, inputs, outputs, set(states))
        self._extras = frozenset(EXTRAS) & inputs.keys()  # the graph omits masks that no layer uses
        self.memory = allocate(states, size)
        # One array for all bindings: they are many, and a row is as wide as the vocabulary.
        num_rows = max(size.num_slots, self.spec.max_rows)
        self._logits = np.zeros((num_rows, self.spec.vocab_size), np.float32)
        self._states = np.zeros((1, max(1, self.spec.states_size)), np.float32)
        self._columns: dict[tuple[int, int], _Column] = {}
        self._chunks: dict[int, Any] = {}

    def prefill(self, slot: int, start: int, tokens: Tokens, num_rows: int) -> Floats:
        """Append a chunk to one slot; see :class:`vlmkit_onnx.decoders.decoder.Decoder`."""
        binding = self._chunk(slot, start, tokens, num_rows)
        if self.spec.states_size:
            self._bind_states(binding, tokens, self._states)
        self._run(binding)
        return self._logits[:num_rows]

    def prefill_states(self, slot: int, start: int, tokens: Tokens, num_rows: int) -> Floats:
        """Append a chunk; see :class:`vlmkit_onnx.decoders.decoder.StatesDecoder`."""
        binding = self._chunk(slot, start, tokens, 0)
        states = np.empty((max(1, num_rows), self.spec.states_size), np.float32)
        self._bind_states(binding, tokens, states)
        self._run(binding)
        return states[:num_rows]

    def decode(self, first_slot: int, starts: NDArray[np.int32], tokens: Tokens) -> Floats:
        """Append one token to each slot; see :class:`vlmkit_onnx.decoders.decoder.Decoder`."""
        key = (first_slot, len(starts))
        if key not in self._columns:
            self._columns[key] = _Column(self._bind(*key), self.spec, len(starts))
        column = self._columns[key]
        column.embeddings[:] = tokens.rows
        column.positions[:] = self._positions(tokens)
        column.lengths[:] = starts
        column.total[...] = starts.max() + 1
        if self._copies_inputs:
            column.bind()
        self._bind_extras(column.binding, tokens)
        self._run(column.binding)
        return self._logits[: len(starts)]

    def close(self) -> None:
        """Free the graph and the cache."""
        self._columns.clear()
        self._chunks.clear()
        del self._session
        self.memory.close()

    def _chunk(self, slot: int, start: int, tokens: Tokens, num_rows: int) -> Any:
        """Bind a chunk and its logits."""
        if slot not in self._chunks:
            self._chunks[slot] = self._bind(slot, 1)
        binding = self._chunks[slot]
        num_tokens = tokens.ids.shape[1]
        stop, first = (
            start + num_tokens,
            num_tokens - max(1, num_rows),
        )  # the graph returns at least one row
        self._feed(binding, tokens)
        binding.bind_cpu_input("seqlens_k", np.array([stop - 1], np.int32))
        binding.bind_cpu_input("total_sequence_length", np.array(stop, np.int32))
        binding.bind_cpu_input("logits_indices", np.arange(first, num_tokens))
        _bind_output(binding, "logits", self._logits[: num_tokens - first])
        return binding

    def _bind_states(self, binding: Any, tokens: Tokens, states: Floats) -> None:
        """Bind an array for the states of the last tokens."""
        num_tokens = tokens.ids.size
        binding.bind_cpu_input("hidden_indices", np.arange(num_tokens - len(states), num_tokens))
        _bind_output(binding, "hidden_states", states)

    def _run(self, binding: Any) -> None:
        if self._copies_inputs:
            binding.synchronize_inputs()  # binding only starts the copy to a device
        self._session.run_with_iobinding(binding)

    def _feed(self, binding: Any, tokens: Tokens) -> None:
        binding.bind_cpu_input("inputs_embeds", np.ascontiguousarray(tokens.rows))
        binding.bind_cpu_input("position_ids", np.ascontiguousarray(self._positions(tokens)))
        self._bind_extras(binding, tokens)

    def _bind_extras(self, binding: Any, tokens: Tokens) -> None:
        for name, array in tokens.extras.items():
            if name in self._extras:
                binding.bind_cpu_input(name, array)

    def _positions(self, tokens: Tokens) -> NDArray[np.int64]:
        return tokens.positions if self.spec.num_position_axes > 1 else tokens.positions[0]

    def _bind(self, first_slot: int, num_rows: int) -> Any:
        """Return a binding with the cache of adjacent slots.

        Logits are written to the first rows of one array, regardless of the slots.
        """
        binding = self._session.io_binding()
        bind_cache(binding, self._present, self.memory, first_slot, num_rows)
        _bind_output(binding, "logits", self._logits[:num_rows])
        if self.spec.states_size:  # unused, but the graph returns at least one row
            binding.bind_cpu_input("hidden_indices", np.zeros(1, np.int64))
            _bind_output(binding, "hidden_states", self._states)
        return binding


class _Column:
    """Adjacent slots, bound for one token each, with inputs that are filled in place."""

    def __init__(self, binding: Any, spec: DecoderSpec, num_rows: int) -> None:
        self.binding = binding
        shape = (num_rows, 1) if spec.num_position_axes == 1 else (3, num_rows, 1)
        self.embeddings = np.zeros((num_rows, 1, spec.hidden_size), np.float32)
        self.positions = np.zeros(shape, np.int64)
        self.lengths = np.zeros(num_rows, np.int32)
        self.total = np.zeros((), np.int32)
        self._indices = np.arange(
            num_rows
        )  # referenced here, because the binding stores only its address
        self.bind()

    def bind(self) -> None:
        """Bind the inputs with their current values."""
        _bind_input(self.binding, "inputs_embeds", self.embeddings)
        _bind_input(self.binding, "position_ids", self.positions)
        _bind_input(self.binding, "seqlens_k", self.lengths)
        _bind_input(self.binding, "total_sequence_length", self.total)
        _bind_input(self.binding, "logits_indices", self._indices)


def _bind_input(binding: Any, name: str, array: NDArray[Any]) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _bind_output(binding: Any, name: str, array: NDArray[Any]) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _spec(
    graph: DecoderGraph, inputs: dict[str, Any], outputs: dict[str, Any], states: set[str]
) -> DecoderSpec:
    known = states | REQUIRED | set(EXTRAS)
    if wrong := sorted((REQUIRED - set(inputs)) | (set(inputs) - known)):
        raise CheckpointError(
            f"{graph.file.name!r} is not a decoder of this version: its input {wrong[0]!r} is "
            f"{'unknown' if wrong[0] in inputs else 'missing'}",
            hint="export the model again: vlmkit export MODEL DIR",
        )
    hidden = inputs["inputs_embeds"].shape[-1]
    vocab = outputs["logits"].shape[-1] if "logits" in outputs else None
    if not isinstance(hidden, int) or not isinstance(vocab, int):
        raise CheckpointError(f"{graph.file.name!r} does not say how wide its arrays are")
    levels = inputs["deepstack"].shape[0] if "deepstack" in inputs else 0
    return DecoderSpec(
        num_layers=len(states) // 2,
        vocab_size=vocab,
        hidden_size=hidden,
        num_position_axes=3 if len(inputs["position_ids"].shape) == 3 else 1,
        num_deepstack=levels,
        takes_bias="attention_bias" in inputs,
        max_rows=MAX_ROWS,
        states_size=outputs["hidden_states"].shape[-1] if "hidden_indices" in inputs else 0,
    )
