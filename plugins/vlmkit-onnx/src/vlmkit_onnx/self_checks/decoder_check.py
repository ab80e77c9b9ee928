"""All that a decoder is tried with before anything is promised of it, once on each machine.

What comes out depends on the graph, on ONNX Runtime, on the processor and on settings: a note of it
is found again as long as none of them changes (:mod:`vlmkit.kit.selfcheck_records`).
"""

from pathlib import Path

from vlmkit.kit import selfcheck_records
from vlmkit_onnx.decoders.decoder import Decoder
from vlmkit_onnx.self_checks.continuity import refuse_discontinuous
from vlmkit_onnx.self_checks.invariance import keeps_rows_apart
from vlmkit_onnx.sessions.session import num_threads
from vlmkit_onnx.settings import EngineSettings

APART, TOGETHER = "rows are the same in every batch", "rows depend on their batch"
CPU_HINT = 'engine.device = "cpu" computes it without the device'


def try_decoder(decoder: Decoder, file: Path, settings: EngineSettings, *, claims: bool) -> bool:
    """Try a decoder that nobody uses yet; return whether a row has the same bits in every batch.

    Args:
        decoder: is tried, unless it went through that before.
        file: its graph.
        settings: that it was opened with.
        claims: whether its exporter says so of its rows; where not, that is not tried.

    Raises:
        CheckpointError: the graph fails, or its logits depend on how the tokens come.
    """
    facts = [file.name, repr(settings), str(num_threads(settings)), str(claims), _sources()]
    note = selfcheck_records.place(file.parent, "decoder-trials", facts)
    known = selfcheck_records.read(note)
    if known in (APART, TOGETHER):
        return known == APART
    hint = "" if settings.device in ("auto", "cpu") else CPU_HINT
    refuse_discontinuous(decoder, file.name, hint=hint)
    is_apart = claims and keeps_rows_apart(decoder)
    selfcheck_records.write(note, APART if is_apart else TOGETHER)
    return is_apart


def _sources() -> str:
    """Return what changes when the drivers or the trials do: sizes of their files."""
    folder = Path(__file__).parents[1]
    files = sorted(
        path for part in ("decoders", "self_checks") for path in (folder / part).glob("*.py")
    )
    return " ".join(f"{path.name} {path.stat().st_size}" for path in files)
