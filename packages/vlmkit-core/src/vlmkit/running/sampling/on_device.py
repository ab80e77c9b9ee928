"""Sampling on a device: nothing is read back, and all rows go through the same operations.

Rows with top-k or top-p have their likeliest logits sorted: as many as the largest top-k among
them, or the whole vocabulary if one of them has none. Everything else reads each logit once. Rows
that take the likeliest token are copied if tokens are banned: without reading, it is unknown
whether a banned token is the likeliest.
"""

import math
from collections.abc import Sequence as Seq
from typing import Any

import array_api_compat

from vlmkit.running.sampling.batch import Choice, Columns, apply, changed, columns, send
from vlmkit.running.sampling.random_numbers import add_gumbel_noise, bits, exponentials
from vlmkit.running.sampling.top_k_top_p import cutoff_logit, top_p_target, truncated


def sample_on_device(xp: Any, logits: Any, token_ids: Any, choices: Seq[Choice]) -> Any:
    """Return token ids ``[rows]``.

    Args:
        xp: the namespace of the arrays.
        logits: ``[rows, vocab]`` float32, not changed.
        token_ids: ``[vocab]`` int64: 0, 1, 2...
        choices: one for each row.
    """
    num_rows, vocab_size = logits.shape
    device = array_api_compat.device(logits)
    cut = [row for row, c in enumerate(choices) if c.is_cut]
    every, some, changes = send(
        xp,
        device,
        columns(choices, range(num_rows), vocab_size),
        columns(choices, cut, vocab_size),
        changed(choices, vocab_size),
    )
    if changes.rows.shape[0]:
        logits = xp.astype(logits, xp.float32, copy=True)
        apply(xp, logits, changes, choices)
    if not any(c.is_drawn for c in choices):
        return xp.argmax(logits, axis=-1)
    drawn = exponentials(xp, bits(token_ids, every.first, every.second, every.masks), every.half)
    sums = add_gumbel_noise(xp, logits, every.temperatures, drawn)
    floors: Any = None
    if cut:
        num = max(choices[row].top_k or vocab_size for row in cut)
        floors = _floors(xp, logits, every.floors, some, min(num, vocab_size))
    if any(c.depth > -math.inf for c in choices):
        lowest = xp.max(logits, axis=-1, keepdims=True) + every.depths
        floors = lowest if floors is None else xp.maximum(floors, lowest)
    if any(c.is_truncated for c in choices):
        is_kept = logits >= (every.floors if floors is None else floors)
        sums = xp.where(truncated(xp, logits, is_kept, every), sums, every.lowest)
    elif floors is not None:
        sums = xp.where(logits < floors, every.lowest, sums)
    return xp.argmax(sums, axis=-1)


def _floors(xp: Any, logits: Any, floors: Any, cut: Columns, num: int) -> Any:
    """Return floors, raised to the least logits that top-k and top-p keep."""
    is_all = cut.rows.shape[0] == logits.shape[0]
    rows = logits if is_all else logits[cut.rows[:, 0], :]
    found = cutoff_logit(xp, _likeliest(xp, rows, num), cut, top_p_target(cut))
    if is_all:
        return found
    floors[cut.rows[:, 0], :] = found
    return floors


def _likeliest(xp: Any, rows: Any, num: int) -> Any:
    """Return the largest logits of each row, largest first."""
    if num < rows.shape[-1] and array_api_compat.is_torch_array(rows):
        return rows.topk(num, dim=-1).values
    return xp.sort(rows, axis=-1, descending=True)[:, :num]
