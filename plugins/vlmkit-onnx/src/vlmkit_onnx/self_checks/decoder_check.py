"""Checks a decoder before the engine promises anything about it, once on each machine.

The results depend on the graph, ONNX Runtime, the processor and the settings. A note of them is
valid until one of these changes (:mod:`vlmkit.kit.selfcheck_records`).

An exporter states batch invariance as measured on its machine. ONNX Runtime selects other kernels
on other CPUs. With AVX2 alone, for example, its kernel for 4-bit weights sums a single row in
another order than a row of a batch. The engine must not promise invariance there.
"""

from pathlib import Path

import numpy as np

from vlmkit.kit import selfcheck_records
from vlmkit_onnx.decoders.decoder import Decoder, Floats
from vlmkit_onnx.self_checks.continuity import refuse_discontinuous
from vlmkit_onnx.self_checks.sample_tokens import column_of, sample_tokens
from vlmkit_onnx.sessions.session import num_threads
from vlmkit_onnx.settings import EngineSettings

BATCHES = (1, 2, 5)  # kernels take rows in twos and fours, and a remainder alone
INVARIANT, VARIANT = "rows are the same in every batch", "rows depend on their batch"
CPU_HINT = 'engine.device = "cpu" computes it without the device'


def check_decoder(decoder: Decoder, file: Path, settings: EngineSettings, *, claims: bool) -> bool:
    """Check an unused decoder; return whether a row has the same bits in every batch.

    Args:
        decoder: to check, unless a note of its results exists.
        file: its graph.
        settings: with which it was opened.
        claims: whether its exporter states batch invariance; if not, that is not checked.

    Raises:
        CheckpointError: the graph fails, or its logits depend on how tokens are split.
    """
    facts = [file.name, repr(settings), str(num_threads(file, settings)), str(claims), _sources()]
    note = selfcheck_records.record_path(file.parent, "decoder-trials", facts)
    known = selfcheck_records.read(note)
    if known in (INVARIANT, VARIANT):
        return known == INVARIANT
    hint = "" if settings.device in ("auto", "cpu") else CPU_HINT
    refuse_discontinuous(decoder, file.name, hint=hint)
    is_invariant = claims and rows_are_invariant(decoder)
    selfcheck_records.write(note, INVARIANT if is_invariant else VARIANT)
    return is_invariant


def rows_are_invariant(decoder: Decoder) -> bool:
    """Return whether rows of different lengths have the same bits alone and in batches.

    The slots must be empty before, and are empty afterwards.
    """
    tokens = sample_tokens(decoder.spec)
    sizes = [size for size in BATCHES if size <= decoder.memory.num_slots]

    def logits(first: int, stop: int) -> Floats:
        starts = np.arange(first, stop, dtype=np.int32)
        return decoder.decode(first, starts, column_of(decoder.spec, tokens, starts)).copy()

    try:
        alone = np.concatenate([logits(row, row + 1) for row in range(sizes[-1])])
        return all(np.array_equal(logits(0, size), alone[:size]) for size in sizes)
    finally:
        for slot in range(sizes[-1]):
            decoder.memory.discard(slot)


def _sources() -> str:
    """Return names and sizes of the files of drivers and checks, which change with their code."""
    folder = Path(__file__).parents[1]
    files = sorted(
        path for part in ("decoders", "self_checks") for path in (folder / part).glob("*.py")
    )
    return " ".join(f"{path.name} {path.stat().st_size}" for path in files)
