"""Runs decoders of GroupQueryAttention that others exported, writing the cache in place.

Such a graph (onnxruntime-genai's builder makes them, and most of onnx-community's are of its kind)
is told by a mask how long each row is: it counts the ones for the length, and takes the width for
the longest. So slots of different lengths run together though none is padded.
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
from vlmkit_onnx.slots.device_memory import CPU, Device, memory_on


class MaskedDecoder:
    """Computes tokens of slots as promised by :class:`vlmkit_onnx.decoders.decoder.Decoder`.

    Args:
        graph: names its inputs.
        session: the graph, open.
        num_slots: sequences that have a place at once.
        slot_tokens: longest sequence.
        device: where the cache lies.

    Raises:
        CheckpointError: the graph needs what is not known, or its cache cannot be written in place.
    """

    def __init__(
        self,
        graph: DecoderGraph,
        session: onnxruntime.InferenceSession,
        num_slots: int,
        slot_tokens: int,
        device: Device = CPU,
    ) -> None:
        self._session = session
        self._copies_inputs = device != CPU
        self._io = ForeignDecoder(graph, session)
        self.spec = self._io.spec
        _refuse_copies(graph, self._io)
        self.memory = memory_on(device, self._io.states, num_slots, slot_tokens)
        self._bindings: dict[tuple[int, int], Any] = {}

    def prefill(self, slot: int, start: int, tokens: Tokens, num_rows: int) -> Floats:
        """Append a chunk to one slot; see :class:`vlmkit_onnx.decoders.decoder.Decoder`."""
        logits = self._run(slot, np.array([start], np.int32), tokens)
        return logits[:num_rows]

    def decode(self, first_slot: int, starts: NDArray[np.int32], tokens: Tokens) -> Floats:
        """Append one token to each of some slots: :class:`vlmkit_onnx.decoders.decoder.Decoder`."""
        return self._run(first_slot, starts, tokens)

    def close(self) -> None:
        """Let go of the graph and of the cache."""
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
            binding.synchronize_inputs()  # a copy to a device is only begun when it is bound
        if tokens.ids.shape[1] > 1:  # graphs differ in how many of the rows they give
            binding.bind_output(self._io.logits, "cpu")
            self._session.run_with_iobinding(binding)
            return self._io.last_row(binding.get_outputs()[-1].numpy())
        logits = np.empty((len(starts), 1, self.spec.vocab_size), self._io.logits_dtype)
        place = ("cpu", 0, logits.dtype, logits.shape, logits.ctypes.data)
        binding.bind_output(self._io.logits, *place)
        self._session.run_with_iobinding(binding)
        return logits[:, 0].astype(np.float32, copy=False)

    def _binding(self, first_slot: int, num_rows: int) -> Any:
        """Return a binding that has the cache of neighbouring slots."""
        binding = self._bindings.get((first_slot, num_rows))
        if binding is None:
            binding = self._session.io_binding()
            bind_cache(binding, self._io.present, self.memory, first_slot, num_rows)
            self._bindings[first_slot, num_rows] = binding
        return binding


def _refuse_copies(graph: DecoderGraph, io: ForeignDecoder) -> None:
    """Only an attention operator that itself reads and writes the cache can do so in place."""
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
