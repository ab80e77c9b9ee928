"""Runs decoders with GroupQueryAttention of other exporters, which write the cache in place.

onnxruntime-genai's builder exports such graphs, and most of onnx-community's are of this kind. A
graph gets the length of each row from a mask: the number of ones is the row's length, and the width
is the longest length. Slots of different lengths therefore run together without padding.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit_onnx.decoders.cache_nodes import bind_cache
from vlmkit_onnx.decoders.decoder import Floats, Tokens
from vlmkit_onnx.decoders.foreign_decoder import ForeignDecoder
from vlmkit_onnx.folder.graph_header import read_header
from vlmkit_onnx.folder.layout import DecoderGraph
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.slots.device_memory import allocate
from vlmkit_onnx.slots.memory import CPU, CacheSize


class MaskedDecoder:
    """Implements :class:`vlmkit_onnx.decoders.decoder.Decoder`.

    Args:
        graph: states the names of its inputs.
        session: of the graph.
        size: of the cache, and its device.

    Raises:
        CheckpointError: the graph has unknown inputs, or cannot write its cache in place.
    """

    def __init__(
        self, graph: DecoderGraph, session: onnxruntime.InferenceSession, size: CacheSize
    ) -> None:
        self._session = session
        self._copies_inputs = size.device != CPU
        self._io = ForeignDecoder(graph, session)
        self.spec = self._io.spec
        _refuse_copies(graph, self._io)
        self.memory = allocate(self._io.states, size)
        self._bindings: dict[tuple[int, int], Any] = {}

    def prefill(self, slot: int, start: int, tokens: Tokens, num_rows: int) -> Floats:
        """Append a chunk to one slot; see :class:`vlmkit_onnx.decoders.decoder.Decoder`."""
        logits = self._run(slot, np.array([start], np.int32), tokens)
        return logits[:num_rows]

    def decode(self, first_slot: int, starts: NDArray[np.int32], tokens: Tokens) -> Floats:
        """Append one token to each slot; see :class:`vlmkit_onnx.decoders.decoder.Decoder`."""
        return self._run(first_slot, starts, tokens)

    def close(self) -> None:
        """Free the graph and the cache."""
        self._bindings.clear()
        del self._session
        self.memory.close()

    def _run(self, first_slot: int, starts: NDArray[np.int32], tokens: Tokens) -> Floats:
        binding = self._binding(first_slot, len(starts))
        stops = starts + tokens.ids.shape[1]
        mask = np.arange(stops.max()) < stops[:, None]
        has_past = bool(starts.any())
        for name, array in self._io.feeds(tokens, mask, has_past=has_past).items():
            binding.bind_cpu_input(name, array)
        if self._copies_inputs:
            binding.synchronize_inputs()  # binding only starts the copy to a device
        if tokens.ids.shape[1] > 1:  # graphs differ in the number of rows that they return
            binding.bind_output(self._io.logits, "cpu")
            self._session.run_with_iobinding(binding)
            return self._io.last_row(binding.get_outputs()[-1].numpy())
        logits = np.empty((len(starts), 1, self.spec.vocab_size), self._io.logits_dtype)
        location = ("cpu", 0, logits.dtype, logits.shape, logits.ctypes.data)
        binding.bind_output(self._io.logits, *location)
        self._session.run_with_iobinding(binding)
        return logits[:, 0].astype(np.float32, copy=False)

    def _binding(self, first_slot: int, num_rows: int) -> Any:
        """Return a binding with the cache of adjacent slots."""
        binding = self._bindings.get((first_slot, num_rows))
        if binding is None:
            binding = self._session.io_binding()
            bind_cache(binding, self._io.present, self.memory, first_slot, num_rows)
            self._bindings[first_slot, num_rows] = binding
        return binding


def _refuse_copies(graph: DecoderGraph, io: ForeignDecoder) -> None:
    """Refuse a graph whose attention operators do not read and write the cache themselves."""
    attention = read_header(graph.file).attention
    pairs = {node.past_key: node.present_key for node in attention}
    pairs |= {node.past_value: node.present_value for node in attention}
    for past, present in io.present.items():
        if pairs.get(past) != present:
            raise CheckpointError(
                f"input {past!r} of {graph.file.name!r} is not the cache of one attention operator"
            )
    if not io.spec.num_position_axes and not any(node.rotates for node in attention):
        raise CheckpointError(
            f"{graph.file.name!r} takes no positions, and its attention makes none"
        )
