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
INT8_TOLERANCE = 0.25  # of the largest logit


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
    found = _difference(engine, views, expected, last_position)
    if found is None:
        return  # only tests have such a small cache
    difference, largest = found
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

    Keys of some families have a few numbers that are so large that the others are rounded to zero.

    Args:
        engine: the engine, with that cache.
        views: its model.
        expected: the result of :func:`reference`.

    Raises:
        CheckpointError: rounding changes the answers of this model too much.
    """
    found = _difference(engine, views, expected)
    if found is None:
        return
    difference, largest = found
    log.info("the 8-bit cache changes logits by %.2g where they reach %.2g", difference, largest)
    if not difference <= INT8_TOLERANCE * largest:
        raise CheckpointError(
            f"the 8-bit cache changes the logits of this model by {difference:.2g} where they "
            f"reach {largest:.2g}; it would answer wrong",
            hint='engine.cache_dtype = "auto" keeps keys and values in the precision of the model; '
            "engine.self_check = false runs it all the same",
        )


def _difference(
    engine: CheckedEngine, views: Views, expected: torch.Tensor, last_position: int | None = None
) -> tuple[float, float] | None:
    """Return the largest difference of logits, and the largest logit; None if the cache is full."""
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
    return (found - wanted).abs().max().item(), max(wanted.abs().max().item(), 1e-6)


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
