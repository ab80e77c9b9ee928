"""Runs decoders that return an extended copy of the cache, as optimum exported them.

Such a graph gets the length of each row only from a mask. Rows of different lengths are padded to
the longest. The padding is between a row's past and its new token, and the mask hides it. The new
keys and values are the last columns of the returned cache, and are copied into the slots. Every
step copies the whole cache.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import EngineError
from vlmkit_onnx.decoders.decoder import Floats, Tokens
from vlmkit_onnx.decoders.foreign_decoder import ForeignDecoder, part_of
from vlmkit_onnx.folder.layout import DecoderGraph
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.slots.host_memory import HostMemory
from vlmkit_onnx.slots.memory import CacheSize


class ConcatDecoder:
    """Implements :class:`vlmkit_onnx.decoders.decoder.Decoder`.

    Args:
        graph: states the names of its inputs.
        session: of the graph.
        size: of the cache.

    Raises:
        CheckpointError: the graph has unknown inputs.
    """

    def __init__(
        self, graph: DecoderGraph, session: onnxruntime.InferenceSession, size: CacheSize
    ) -> None:
        self._session = session
        self._io = ForeignDecoder(graph, session)
        self.spec = self._io.spec
        self.memory = HostMemory(self._io.states, size.num_slots, size.slot_tokens)
        self._outputs = [self._io.logits, *self._io.present.values()]
        # A graph of two branches was traced with one new token after a past. A graph without
        # positions counts padding as tokens.
        self._appends_one = self._io.takes("use_cache_branch")
        self._pads_rows = self.spec.num_position_axes > 0

    def prefill(self, slot: int, start: int, tokens: Tokens, num_rows: int) -> Floats:
        """Append a chunk to one slot; see :class:`vlmkit_onnx.decoders.decoder.Decoder`."""
        logits = np.zeros((0, self.spec.vocab_size), np.float32)
        num_tokens = tokens.ids.shape[1]
        step = 1 if self._appends_one and start else num_tokens
        for first in range(0, num_tokens, step):
            chunk = part_of(tokens, columns=slice(first, first + step))
            logits = self._run(slot, np.array([start + first], np.int32), chunk)
        return logits[:num_rows]

    def decode(self, first_slot: int, starts: NDArray[np.int32], tokens: Tokens) -> Floats:
        """Append one token to each slot; see :class:`vlmkit_onnx.decoders.decoder.Decoder`."""
        if self._pads_rows or len(set(starts.tolist())) == 1:
            return self._run(first_slot, starts, tokens)
        return np.concatenate(
            [
                self._run(
                    first_slot + row, starts[row : row + 1], part_of(tokens, slice(row, row + 1))
                )
                for row in range(len(starts))
            ]
        )

    def close(self) -> None:
        """Free the graph and the cache."""
        del self._session
        self.memory.close()

    def _run(self, first_slot: int, starts: NDArray[np.int32], tokens: Tokens) -> Floats:
        num_past, num_new = int(starts.max()), tokens.ids.shape[1]
        has_past = np.arange(num_past) < starts[:, None]
        mask = np.concatenate([has_past, np.ones((len(starts), num_new), np.bool_)], 1)
        feeds = self._io.feeds(tokens, mask, has_past=num_past > 0)
        for past in self._io.present:
            rows = self.memory.rows(past, first_slot, len(starts))
            feeds[past] = np.ascontiguousarray(rows[:, :, :num_past])
        logits, *present = self._session.run(self._outputs, feeds)
        for past, array in zip(self._io.present, present, strict=True):
            self._store(past, first_slot, starts, num_new, array)
        return self._io.last_row(logits)

    def _store(
        self,
        past: str,
        first_slot: int,
        starts: NDArray[np.int32],
        num_new: int,
        present: NDArray[Any],
    ) -> None:
        """Write the last columns of the extended cache behind each slot's tokens."""
        rows = self.memory.rows(past, first_slot, len(starts))
        num_past = int(starts.max())
        if present.shape != (*rows.shape[:2], num_past + num_new, rows.shape[3]):
            raise EngineError(
                f"a cache of {num_past} tokens came back as {list(present.shape)}, expected "
                f"{num_new} more"
            )
        for row, start, longer in zip(rows, starts.tolist(), present, strict=True):
            row[:, start : start + num_new] = longer[:, num_past:]
