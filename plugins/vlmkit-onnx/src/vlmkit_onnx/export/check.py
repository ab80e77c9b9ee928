"""Compares an exported decoder with its modules, at other shapes than the traced ones.

Chunks are appended to a slot full of random numbers, in a buffer that is longer than the text and
has other slots. Then several slots of different lengths decode as one batch. Uses no torch: the
sample holds the expected logits.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit_onnx.export.sample import Sample
from vlmkit_onnx.sessions.session import open_session
from vlmkit_onnx.settings import ComputeSettings

CHUNKS = (20, 7, 1, 1, 5, 1)
PREFIXES = (9, 17, 12)  # tokens of the slots that decode together
NUM_SLOTS = 4
SLOT_TOKENS = 48
TOLERANCES: dict[str, float] = {"fp32": 1e-4}
RIGHT_SHARE = 0.75
# A rounding in the other direction moves a number by a whole step, and affects the next layers:
# 24 layers of random weights reached 0.05.
ROUNDED_TOLERANCE = 0.1
Array = NDArray[Any]


def check(path: Path, sample: Sample, precision: str, *, chooses: bool = False) -> float:
    """Return the largest difference, as a fraction of the largest logit or hidden state.

    Args:
        path: the graph.
        sample: tokens and expected results.
        precision: of its linear layers.
        chooses: whether it selects experts. Rounding may select another expert for a row, which is
            not wrong: with rounding, a quarter of the rows may differ.

    Raises:
        CheckpointError: the difference is more than rounding, or the graph does not run.
    """
    try:
        differences = _differences(_Runner(path), sample)
    except Exception as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            "the exported decoder does not run on this ONNX Runtime",
            hint="`vlmkit --debug ...` shows why; please report the model type",
        ) from error
    share = RIGHT_SHARE if chooses and precision != "fp32" else 1
    difference = max(float(np.sort(rows)[int(share * (len(rows) - 1))]) for rows in differences)
    if not difference <= TOLERANCES.get(precision, ROUNDED_TOLERANCE):
        raise CheckpointError(
            f"the exported decoder differs from the model by {difference:.2g} of its largest "
            "logit or hidden state; this family cannot be exported",
            hint="please report the model type",
        )
    return difference


def _differences(runner: "_Runner", sample: Sample) -> list[Array]:
    """Return each row's largest difference, for one sequence in chunks and for one batch.

    Logits come first, then hidden states.
    """
    start, slot, chunks = 0, 1, []
    for count in CHUNKS:
        chunks.append(runner.run(sample, [(slot, start)], count))
        start += count
    for slot, length in enumerate(PREFIXES):
        runner.run(sample, [(slot, 0)], length)
    batch = runner.run(sample, list(enumerate(PREFIXES)), 1)
    found = zip(*chunks, strict=True), batch
    made = []
    for pieces, rows, wanted in zip(*found, (sample.logits, sample.states), strict=True):
        made.append(_distances(np.concatenate(pieces), wanted))
        made.append(_distances(rows, wanted[list(PREFIXES)]))
    return made


def _distances(found: Array, wanted: Array) -> Array:
    """Return ``[rows]`` as fractions of the largest number; infinity if a value is not finite."""
    far = np.abs(found - wanted).max(axis=-1) / max(float(np.abs(wanted).max()), 1e-6)
    return np.where(np.isfinite(far), far, np.inf)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The tokens of a call: ``count`` tokens of the sample from a start in each of some slots."""

    first_slot: int
    starts: list[int]
    count: int

    @property
    def total(self) -> int:
        return max(self.starts) + self.count

    def pick(self, tokens: Array, axis: int) -> Array:
        """Return ``[..., rows, count, ...]`` of an array with a token axis."""
        spans = [np.arange(start, start + self.count) for start in self.starts]
        return np.take(tokens, np.stack(spans), axis=axis)


class _Runner:
    """A session and its cache, initially full of random numbers."""

    def __init__(self, path: Path) -> None:
        self.session = open_session(path, ComputeSettings())
        self.inputs = {item.name: item for item in self.session.get_inputs()}
        outputs = {item.name: item for item in self.session.get_outputs()}
        self.widths = {name: int(outputs[name].shape[1]) for name in ("logits", "hidden_states")}
        random = np.random.default_rng(3)
        self.cache = {
            name: random.normal(size=(NUM_SLOTS, item.shape[1], SLOT_TOKENS, item.shape[3])).astype(
                np.float16 if "float16" in item.type else np.float32
            )
            for name, item in self.inputs.items()
            if name.startswith("past_key_values.")
        }

    def run(self, sample: Sample, slots: list[tuple[int, int]], count: int) -> list[Array]:
        """Append ``count`` tokens to adjacent slots, each given with its length.

        Returns:
            ``[rows * count, vocab]``, the logits of all of them, and ``[rows * count, hidden]``.
        """
        rows = _Rows(slots[0][0], [start for _, start in slots], count)
        binding = self.session.io_binding()
        for name, array in _feeds(sample, rows).items():
            if name in self.inputs:
                binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, whole in self.cache.items():
            part = whole[rows.first_slot : rows.first_slot + len(slots)]
            present = name.replace("past_key_values", "present")
            place = ("cpu", 0, part.dtype, part.shape, part.ctypes.data)
            binding.bind_input(name, *place)
            binding.bind_output(present, *place)
        made = []
        for name, width in self.widths.items():
            array = np.empty((len(slots) * count, width), np.float32)
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
            made.append(array)
        self.session.run_with_iobinding(binding)
        return made


def _feeds(sample: Sample, rows: _Rows) -> dict[str, Array]:
    """Return the inputs of a call by name; a graph may take fewer."""
    starts = np.array(rows.starts, np.int32)
    positions = rows.pick(sample.positions, 1)
    feeds = {
        "inputs_embeds": rows.pick(sample.embeddings, 0),
        "position_ids": positions if len(positions) == 3 else positions[0],
        "seqlens_k": starts + np.int32(rows.count - 1),
        "total_sequence_length": np.array(rows.total, np.int32),
        "logits_indices": np.arange(len(starts) * rows.count),
        "hidden_indices": np.arange(len(starts) * rows.count),
    }
    if sample.deepstack is not None:
        feeds["deepstack"] = rows.pick(sample.deepstack, 1)
    for name, visible in zip(
        ("attention_bias", "attention_bias_local"), sample.visible or (), strict=False
    ):
        seen = rows.pick(visible, 0)[:, None, :, : rows.total]
        feeds[name] = np.where(seen, np.float32(0), np.float32(-np.inf))
    return feeds
