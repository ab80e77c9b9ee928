"""Shows at load that paged, chunked computation agrees with the plain model.

Catches what no list of families can: an attention that works otherwise than we believe, a kernel
that is wrong on this machine. Two dozen tokens, once.
"""

from typing import TYPE_CHECKING

import torch

from vlmkit.errors import CheckpointError
from vlmkit.prompt import Prompt
from vlmkit.sampling import SamplingParams
from vlmkit.sequence import Sequence
from vlmkit.step import WorkItem
from vlmkit_torch.views import Views

if TYPE_CHECKING:
    from vlmkit_torch.engine import TorchEngine

STOPS = (9, 20, 21, 22)  # ends of the chunks; the last two are single tokens
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 8e-2, torch.float16: 2e-2}


def reference(views: Views, device: torch.device) -> torch.Tensor:
    """Return logits ``[seq, vocab]`` of the check's tokens, computed the family's plain way.

    Must be called before the decoder is switched to paged attention.
    """
    ids = torch.tensor([views.text_tokens(STOPS[-1])], device=device)
    views.set_attention("eager")
    hidden = views.decoder(input_ids=ids, use_cache=False).last_hidden_state
    return views.head(hidden[0])


def check(engine: "TorchEngine", views: Views, expected: torch.Tensor) -> None:
    """Compute the same tokens in chunks through the engine and compare.

    Raises:
        CheckpointError: the answers differ by more than rounding.
    """
    ids = views.text_tokens(STOPS[-1])
    # All but the first count as answer tokens: those are causal in every family.
    sequence = Sequence(
        id="self-check",
        prompt=Prompt(ids[:1]),
        params=SamplingParams(),
        seed=0,
        max_tokens=len(ids),
        tenant="vlmkit-torch self-check",
        output_ids=list(ids[1:]),
    )
    if engine.admit(sequence) is None:
        return  # a cache this small is for tests
    rows, start = [], 0
    for stop in STOPS:
        rows.append(engine.forward([WorkItem(sequence, start, stop - start, True)])[0])
        start = stop
    engine.release(sequence)
    found = torch.stack(rows).float()
    wanted = expected[[stop - 1 for stop in STOPS]].float().to(found.device)
    difference = (found - wanted).abs().max().item()
    largest = wanted.abs().max().item()
    if not difference <= TOLERANCE.get(expected.dtype, 8e-2) * max(largest, 1e-6):
        raise CheckpointError(
            f"paged computation of this model differs from the plain one by {difference:.2g} "
            f"where logits reach {largest:.2g}; it would answer wrong",
            hint="report the model type; engine.self_check = false runs it all the same",
        )
