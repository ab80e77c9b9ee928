"""Checks at load that paged, chunked computation agrees with the plain model.

Detects an attention mechanism that the engine does not implement, a kernel that is wrong on this
machine, and any effect of one sequence of a step on another. Runs two dozen tokens once. Beside
each chunk runs a token at the highest position that the engine accepts.

A model that passed on a CPU is not checked again on this machine until a file, a setting or a
package changes.
"""

import logging
import os
from pathlib import Path
from typing import Protocol

import torch

from vlmkit.errors import CheckpointError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit import selfcheck_records
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.sampling import SamplingParams
from vlmkit_torch.model.views import Views
from vlmkit_torch.settings import EngineSettings

log = logging.getLogger(__name__)

KERNEL_VARIABLES = ("ATEN_", "DNNL_", "MKL_", "ONEDNN_", "TORCH_")  # prefixes of their names
STOPS = (9, 20, 21, 22)  # ends of the chunks; the last two are single tokens
NUM_CACHED = 2 * (STOPS[-1] + 1)  # tokens of both sequences
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 8e-2, torch.float16: 2e-2}
INT8_TOLERANCE = 0.5  # of the length of a row of logits; most models change by 1 to 5 %


class CheckedEngine(Engine, Protocol):
    """An engine that can place an answer far from its prompt."""

    def move(self, sequence: SequenceView, offset: int) -> None:
        """Shift the positions of an admitted sequence's answer by ``offset`` tokens."""
        ...


def note_of(
    checkpoint: Checkpoint, settings: EngineSettings, device: torch.device, dtype: torch.dtype
) -> Path | None:
    """Return the file that exists once this model passed the check; None if there is none.

    There is none for a GPU: its driver may change unnoticed, and the check takes little time.

    Args:
        checkpoint: the files of the model.
        settings: of the engine.
        device: that computes.
        dtype: of the weights.
    """
    if device.type != "cpu":
        return None
    kernels = {k: v for k, v in os.environ.items() if k.startswith(KERNEL_VARIABLES)}
    facts = [repr(settings), f"{device} {dtype}", repr(sorted(kernels.items())), _sources()]
    return selfcheck_records.record_path(checkpoint.path, "self-checks", facts)


def _sources() -> str:
    """Return names and sizes of this plugin's files, which change with its code."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return " ".join(f"{path.name} {path.stat().st_size}" for path in files)


def reference(views: Views, device: torch.device) -> torch.Tensor:
    """Return logits ``[seq, vocab]`` of the check's tokens by the family's own code.

    Must be called before the decoder is switched to paged attention.
    """
    ids = torch.tensor([views.text_tokens(STOPS[-1])], device=device)
    views.set_attention("eager")
    hidden = views.decoder(input_ids=ids, use_cache=False).last_hidden_state
    return views.head(hidden[0])


def check(
    engine: CheckedEngine,
    views: Views,
    expected: torch.Tensor,
    backend: str | None = None,
    last_position: int | None = None,
) -> None:
    """Compute the same tokens in chunks through the engine, and compare.

    Args:
        engine: the engine.
        views: its model.
        expected: the result of :func:`reference`.
        backend: describes the attention backend of another plugin, for errors.
        last_position: the highest position of a token; None is the last that the engine accepts.

    Raises:
        CheckpointError: the answers differ by more than rounding.
    """
    rows = _rows(engine, views, expected, last_position)
    if rows is None:
        return  # only tests have such a small cache
    found, wanted = rows
    difference, largest = (found - wanted).abs().max().item(), max(wanted.abs().max().item(), 1e-6)
    if not difference <= TOLERANCE.get(expected.dtype, 8e-2) * largest:
        subject, hint = "", "report the model type; engine.self_check = false runs it all the same"
        if backend is not None:
            subject = f"{backend} or the model is at fault: "
            hint = 'engine.attention = "sdpa" shows which: it takes the backend of vlmkit-torch'
        raise CheckpointError(
            f"{subject}paged computation of this model, beside another sequence, differs from the "
            f"plain one by {difference:.2g} where logits reach {largest:.2g}; it would answer "
            "wrong",
            hint=hint,
        )


def check_int8(engine: CheckedEngine, views: Views, expected: torch.Tensor) -> None:
    """Compute the same tokens through an 8-bit cache, and measure its rounding.

    Keys of some models have a few numbers that are so large that the others are rounded to zero.
    Then all logits differ. A token that selects other experts differs alone, as it does in half
    precision, so the token that differs least counts.

    Args:
        engine: the engine, with that cache.
        views: its model.
        expected: the result of :func:`reference`.

    Raises:
        CheckpointError: rounding changes the answers of this model too much.
    """
    rows = _rows(engine, views, expected)
    if rows is None:
        return
    found, wanted = (each - each.mean(1, keepdim=True) for each in rows)
    changes = (found - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(1e-6)
    log.info("the 8-bit cache changes logits by %.1f %% (median)", 100 * changes.median().item())
    least = changes.min().item()
    if not least <= INT8_TOLERANCE:
        raise CheckpointError(
            f"the 8-bit cache changes all logits of this model, by {100 * least:.0f} % at least; "
            "it would answer wrong",
            hint='engine.cache_dtype = "auto" keeps keys and values in the precision of the model; '
            "engine.self_check = false runs it all the same",
        )


def _rows(
    engine: CheckedEngine, views: Views, expected: torch.Tensor, last_position: int | None = None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return logits ``[rows, vocab]`` of the engine and those expected; None if it has no room."""
    if last_position is None:
        last_position = engine.limits.max_sequence_tokens - 1
    ids = views.text_tokens(STOPS[-1])
    checked, beside = _sequence(engine, "self-check", ids), _sequence(engine, "beside", ids)
    if engine.admit(checked) is None:
        return None
    if has_neighbour := engine.admit(beside) is not None:
        engine.forward([WorkItem(beside, 0, 1)])
        engine.move(beside, max(0, last_position - len(STOPS)))
    rows, start = [], 0
    for number, stop in enumerate(STOPS, 1):
        items = [WorkItem(checked, start, stop - start, num_rows=1)]
        if has_neighbour:
            items.append(WorkItem(beside, number, 1))
        rows.append(_row(engine.forward(items)))
        start = stop
    for sequence in (checked, beside)[: 1 + has_neighbour]:
        engine.release(sequence)
    found = torch.stack(rows).float()
    wanted = expected[[stop - 1 for stop in STOPS]].float().to(found.device)
    return found, wanted


def _row(output: StepOutput) -> torch.Tensor:
    logits = output.logits
    assert isinstance(logits, torch.Tensor)  # noqa: S101 - a type, not a condition
    return logits[0]


def _sequence(engine: CheckedEngine, name: str, ids: tuple[int, ...]) -> Sequence:
    """Return a sequence with a prompt of one token: its answer is causal in every family."""
    prompt = Prompt(ids[:1])
    return Sequence(
        id=name,
        prompt=prompt,
        plan=engine.read(prompt),
        params=SamplingParams(),
        seed=0,
        max_tokens=len(ids),
        scope=f"vlmkit-torch {name}".encode(),
        output_ids=list(ids[1:]),
    )
