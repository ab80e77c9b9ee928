"""The reference sampler: OpenAI's parameters and the usual filters, on any array library.

Written against the array API standard (plus integer indexing), so the same code chooses from NumPy
rows and from torch rows on the device where they are. Randomness is one number for each token,
computed from the request's seed and the position: no generator state exists, so neither the rest
of the batch nor a preemption can change an answer.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import array_api_compat

from vlmkit.errors import EngineError
from vlmkit.prompt import Array
from vlmkit.protocols import Logprob, Sample
from vlmkit.sampling import SamplingParams
from vlmkit.sequence import Sequence

NUM_CANDIDATES = 1024  # a filter that needs more of the vocabulary sorts all of it
MIN_TEMPERATURE = 1e-5  # below, float32 divides by zero; the draw would be the likeliest anyway


@dataclass(slots=True)
class _Seen:
    """Which tokens a sequence holds, counted once and then kept up to date."""

    in_prompt: frozenset[int]
    in_output: Counter[int] = field(default_factory=Counter)
    num_counted: int = 0


class ArraySampler:
    """Chooses by greedy, temperature, top-k, top-p, min-p, penalties and bias."""

    def __init__(self) -> None:
        self._banned: dict[tuple[tuple[int, ...], object], Any] = {}  # ids as device arrays

    def sample(self, logits: Array, sequences: Seq[Sequence]) -> list[Sample]:
        """Choose one token for each row; see :meth:`protocols.Sampler.sample`."""
        if not sequences:
            return []
        xp = array_api_compat.array_namespace(logits)
        rows: Any = xp.astype(logits, xp.float32, copy=False)
        wanted = [i for i, s in enumerate(sequences) if s.params.logprobs]
        reports = _Reports(xp, rows, wanted)
        token_ids = _choose_plainly(xp, rows, sequences)
        rest = [row for row in range(len(sequences)) if row not in token_ids]
        if rest:
            others = [sequences[row] for row in rest]
            copy = _copied(xp, rows, rest)
            self._adjust(xp, copy, others)
            token_ids.update(zip(rest, _choose(xp, copy, others), strict=True))
        return [
            reports.sample(row, token_ids[row], sequence.params.top_logprobs)
            for row, sequence in enumerate(sequences)
        ]

    def _adjust(self, xp: Any, logits: Any, sequences: Seq[Sequence]) -> None:
        """Apply bans, biases and penalties, in place."""
        for row, sequence in enumerate(sequences):
            if _has_penalty(sequence.params):
                _penalise(xp, logits[row, :], sequence)
        _bias(xp, logits, sequences)
        rows_by_ban: dict[tuple[int, ...], list[int]] = {}
        for row, sequence in enumerate(sequences):
            rows_by_ban.setdefault(sequence.banned_ids, []).append(row)
        for banned_ids, rows in rows_by_ban.items():
            if banned_ids:
                device = array_api_compat.device(logits)
                columns = self._banned_columns(xp, banned_ids, device)
                logits[xp.asarray(rows, device=device)[:, None], columns] = -math.inf

    def _banned_columns(self, xp: Any, banned_ids: tuple[int, ...], device: Any) -> Any:
        """Return banned ids as an array; they are the same for every request of a model."""
        key = (banned_ids, device)
        if key not in self._banned:
            self._banned[key] = xp.asarray(banned_ids, device=device)[None, :]
        return self._banned[key]


class _Reports:
    """Log-probabilities of the rows that asked for them, before any adjustment."""

    def __init__(self, xp: Any, logits: Any, wanted: list[int]) -> None:
        self._xp = xp
        self._rows: dict[int, Any] = {}
        if wanted:
            chosen = _copied(xp, logits, wanted)
            values = chosen - xp.max(chosen, axis=-1, keepdims=True)
            values = values - xp.log(xp.sum(xp.exp(values), axis=-1, keepdims=True))
            self._rows = {row: values[i, :] for i, row in enumerate(wanted)}

    def sample(self, row: int, token_id: int, num_top: int) -> Sample:
        """Return the chosen token with what its request wants to know."""
        if row not in self._rows:
            return Sample(token_id)
        values = self._rows[row]
        order = _largest(self._xp, values[None, :], num_top)[0] if num_top else []
        top = tuple(Logprob(int(i), float(values[int(i)])) for i in order)
        return Sample(token_id, float(values[token_id]), top)


def _copied(xp: Any, logits: Any, rows: list[int]) -> Any:
    """Return a copy of some rows."""
    return logits[xp.asarray(rows, device=array_api_compat.device(logits)), :]


def _choose_plainly(xp: Any, logits: Any, sequences: Seq[Sequence]) -> dict[int, int]:
    """Return by row the likeliest tokens, where nothing else can be meant.

    Where that is every row, none is copied.
    """
    rows = [row for row, sequence in enumerate(sequences) if _is_plain(sequence)]
    if not rows:
        return {}
    if len(rows) < len(sequences):
        logits = _copied(xp, logits, rows)
    found = zip(rows, _likeliest(xp, logits), strict=True)
    return {row: token_id for row, token_id in found if token_id not in sequences[row].banned_ids}


def _is_plain(sequence: Sequence) -> bool:
    """Tell whether a sequence's next token is the likeliest that is not banned."""
    params = sequence.params
    return (
        params.temperature < MIN_TEMPERATURE
        and not params.logit_bias
        and not _has_penalty(params)
        and len(sequence.output_ids) >= params.min_tokens
    )


def _bias(xp: Any, logits: Any, sequences: Seq[Sequence]) -> None:
    """Add each request's biases to its row, and keep answers going until their minimum."""
    rows: list[int] = []
    columns: list[int] = []
    biases: list[float] = []
    for row, sequence in enumerate(sequences):
        edits = dict(sequence.params.logit_bias)
        if len(sequence.output_ids) < sequence.params.min_tokens:
            edits.update(dict.fromkeys(sequence.eos_ids, -math.inf))
        rows += [row] * len(edits)
        columns += edits.keys()
        biases += edits.values()
    if rows:
        device = array_api_compat.device(logits)
        where = (xp.asarray(rows, device=device), xp.asarray(columns, device=device))
        logits[where] = logits[where] + xp.asarray(biases, dtype=xp.float32, device=device)


def _has_penalty(params: SamplingParams) -> bool:
    return bool(
        params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
    )


def _penalise(xp: Any, row: Any, sequence: Sequence) -> None:
    """Apply the three penalties to one row, in place.

    OpenAI's formula: ``logit -= count * frequency_penalty + (count > 0) * presence_penalty``.
    """
    params, seen = sequence.params, _seen(sequence)
    device = array_api_compat.device(row)
    if params.repetition_penalty != 1.0:
        ids = xp.asarray(sorted(seen.in_prompt | seen.in_output.keys()), device=device)
        values = row[ids]
        factor = params.repetition_penalty
        row[ids] = xp.where(values > 0, values / factor, values * factor)
    if seen.in_output and (params.presence_penalty or params.frequency_penalty):
        ids = xp.asarray(list(seen.in_output), device=device)
        counts = xp.asarray(list(seen.in_output.values()), dtype=xp.float32, device=device)
        row[ids] = row[ids] - counts * params.frequency_penalty - params.presence_penalty


def _seen(sequence: Sequence) -> _Seen:
    if sequence.sampler_state is None:
        sequence.sampler_state = _Seen(frozenset(sequence.prompt.token_ids))
    seen: _Seen = sequence.sampler_state
    seen.in_output.update(sequence.output_ids[seen.num_counted :])
    seen.num_counted = len(sequence.output_ids)
    return seen


def _choose(xp: Any, logits: Any, sequences: Seq[Sequence]) -> list[int]:
    """Return one token id for each row of the adjusted logits."""
    token_ids = _likeliest(xp, logits)
    drawn = [i for i, s in enumerate(sequences) if s.params.temperature >= MIN_TEMPERATURE]
    plain = [i for i in drawn if not _has_filter(sequences[i].params)]
    if plain:
        for row, token_id in zip(plain, _draw_any(xp, logits, plain, sequences), strict=True):
            token_ids[row] = token_id
    for row in drawn:
        if _has_filter(sequences[row].params):
            token_ids[row] = _draw_filtered(xp, logits[row, :], sequences[row])
    return token_ids


def _likeliest(xp: Any, logits: Any) -> list[int]:
    """Return each row's likeliest token."""
    token_ids = xp.argmax(logits, axis=-1)
    best = logits[xp.arange(len(logits), device=array_api_compat.device(logits)), token_ids]
    if not all(map(math.isfinite, best.tolist())):
        raise EngineError("the engine returned logits without a finite value")
    likeliest: list[int] = token_ids.tolist()
    return likeliest


def _has_filter(params: SamplingParams) -> bool:
    return bool(params.top_k or params.top_p < 1.0 or params.min_p)


def _draw_any(xp: Any, logits: Any, rows: list[int], sequences: Seq[Sequence]) -> list[int]:
    """Draw from the whole vocabulary: inverse of the cumulative distribution, unsorted."""
    device = array_api_compat.device(logits)
    params = [sequences[row].params for row in rows]
    temperatures = xp.asarray([p.temperature for p in params], dtype=xp.float32, device=device)
    draws = [uniform(sequences[row]) for row in rows]
    uniforms = xp.asarray(draws, dtype=xp.float32, device=device)
    chosen = _copied(xp, logits, rows)
    chosen = (chosen - xp.max(chosen, axis=-1, keepdims=True)) / temperatures[:, None]
    cumulative = xp.cumulative_sum(xp.exp(chosen), axis=-1)
    return _invert(xp, cumulative, uniforms)


def _draw_filtered(xp: Any, logits: Any, sequence: Sequence) -> int:
    """Draw one token from a row cut down by top-k, then top-p, then min-p.

    What is left is drawn from in the vocabulary's order: in that of weights, a rounding would swap
    two tokens of nearly equal weight, and with them the draw.
    """
    params = sequence.params
    vocab_size = logits.shape[0]
    scaled = (logits - xp.max(logits)) / params.temperature
    total = xp.sum(xp.exp(scaled))
    num_wanted = min(params.top_k or vocab_size, vocab_size)
    # top-p counts within top-k, so top-k needs all of its tokens.
    num_sorted = num_wanted if params.top_k else min(num_wanted, NUM_CANDIDATES)
    order = _largest(xp, scaled[None, :], num_sorted)[0, :]
    weights = xp.exp(scaled[order])
    if num_sorted < num_wanted and float(xp.sum(weights) / total) < params.top_p:
        order = _largest(xp, scaled[None, :], num_wanted)[0, :]
        weights = xp.exp(scaled[order])
    if params.top_k:
        total = xp.sum(weights)
    cumulative = xp.cumulative_sum(weights, axis=-1)
    num_kept = int(xp.sum(xp.astype(cumulative - weights < params.top_p * total, xp.int32)))
    num_likely = int(xp.sum(xp.astype(weights >= params.min_p * weights[0], xp.int32)))
    kept = xp.sort(order[: max(1, min(num_kept, num_likely))])
    cumulative = xp.cumulative_sum(xp.exp(scaled[kept]), axis=-1)[None, :]
    device = array_api_compat.device(logits)
    draw = xp.asarray([uniform(sequence)], dtype=xp.float32, device=device)
    return int(kept[_invert(xp, cumulative, draw)[0]])


def _invert(xp: Any, cumulative: Any, uniforms: Any) -> list[int]:
    """Return for each row the first place whose cumulative weight is over ``uniform * total``."""
    total = cumulative[:, -1:]
    passed = xp.sum(xp.astype(cumulative <= uniforms[:, None] * total, xp.int32), axis=-1)
    # Rounding can carry the target up to the total itself: then take the last possible token.
    last = xp.sum(xp.astype(cumulative < total, xp.int32), axis=-1)
    places: list[int] = xp.minimum(passed, last).tolist()
    return places


def _largest(xp: Any, rows: Any, num: int) -> Any:
    """Return the column indices ``[rows, num]`` of the largest values, largest first.

    Ties are broken by the library; for one row alone, so never by the rest of the batch.
    """
    num_columns = rows.shape[-1]
    if array_api_compat.is_torch_array(rows):
        return rows.topk(num, dim=-1).indices
    if num < num_columns // 4 and array_api_compat.is_numpy_array(rows):
        import numpy as np

        part = np.argpartition(rows, num_columns - num, axis=-1)[:, num_columns - num :]
        values = np.take_along_axis(rows, part, axis=-1)
        return np.take_along_axis(part, np.argsort(-values, axis=-1, kind="stable"), axis=-1)
    return xp.argsort(rows, axis=-1, descending=True, stable=True)[:, :num]


def uniform(sequence: Sequence) -> float:
    """Return the request's random number in ``[0, 1)`` for its next token.

    A counter-based generator (Salmon et al., 2011): a hash of seed and position, 24 bits of it, so
    that float32 holds it exactly.
    """
    counter = f"{sequence.seed}:{len(sequence.output_ids)}".encode()
    digest = hashlib.blake2b(counter, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 40) / 2**24
