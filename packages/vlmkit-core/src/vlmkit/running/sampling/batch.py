"""The sampling parameters of a step's rows, row by row and as arrays for a batch.

It makes NumPy arrays and sends them to a device. It chooses no token.
"""

import math
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import numpy as np

from vlmkit.interfaces.sampler import Row
from vlmkit.running.sampling.logit_changes import LogitChanges
from vlmkit.running.sampling.logit_edits import EDITS, LogitEdits
from vlmkit.running.sampling.random_numbers import WORD, keys, uniform

MIN_TEMPERATURE = 1e-5  # below it, sampling is greedy
MAX_XTC_THRESHOLD = 0.5
ALL = 2.0  # a sum of probabilities that is never reached: the filter is off
FROZEN = 2.0**-400  # a float32 over it is so large that noise adds exactly nothing


class Choice(NamedTuple):
    """How the token of one row is chosen.

    Attributes:
        is_drawn: whether the token is drawn at random.
        is_scaled: whether a penalty multiplies logits.
        is_biased: whether something is added before a penalty multiplies.
        is_plain: whether the row takes its likeliest token that is not banned.
        temperature: of rows that are drawn; otherwise so low that noise has no effect.
        top_k: 0 for all tokens.
        top_p: 1 for all tokens.
        depth: how far below the largest logit a token may be: what min-p means; at most 0.
        typical_p: 2 for all tokens.
        epsilon: 0 for all tokens.
        eta: 0 for all tokens.
        xtc: all tokens at least this likely are dropped but the least likely one; 2 drops none.
        keys: the keys of the row's noise.
        banned: tokens that must not be chosen.
        changes: the changes of single logits.
    """

    is_drawn: bool
    is_scaled: bool
    is_biased: bool
    is_plain: bool
    temperature: float
    top_k: int
    top_p: float
    depth: float
    typical_p: float
    epsilon: float
    eta: float
    xtc: float
    keys: tuple[int, int]
    banned: frozenset[int]
    changes: LogitChanges

    @property
    def is_cut(self) -> bool:
        """Whether top-k or top-p drops tokens."""
        return self.is_drawn and (self.top_k > 0 or self.top_p < 1.0)

    @property
    def is_truncated(self) -> bool:
        """Whether a filter drops tokens by the probabilities that earlier filters leave."""
        is_cut_off = self.epsilon > 0 or self.eta > 0
        return self.is_drawn and (self.typical_p <= 1.0 or is_cut_off or self.xtc <= 1.0)

    @property
    def is_typical_alone(self) -> bool:
        """Whether typical-p is the only filter by probability."""
        is_other = self.top_p < 1.0 or self.epsilon > 0 or self.eta > 0 or self.xtc <= 1.0
        return self.typical_p <= 1.0 and not is_other

    def without_filters(self) -> "Choice":
        """Return the same choice without any filter."""
        return self._replace(
            top_k=0, top_p=1.0, depth=-math.inf, typical_p=ALL, epsilon=0.0, eta=0.0, xtc=ALL
        )


def choice(row: Row) -> Choice:
    """Return how a row's token is chosen."""
    edits: LogitEdits = row.sequence.kept.get(EDITS) or EDITS.of(row.sequence)
    if edits.settled is None:
        made = _choice(row, edits)
        if made.is_drawn or not edits.is_settled(len(row.sequence.output_ids)):
            return made
        edits.settled = made
    settled: Choice = edits.settled
    return settled


def _choice(row: Row, edits: LogitEdits) -> Choice:
    params = row.sequence.params
    is_drawn = params.temperature >= MIN_TEMPERATURE and params.top_k != 1
    changes = edits.at(row)
    temperature = params.temperature if is_drawn else FROZEN
    depth = temperature * math.log(params.min_p) if is_drawn and params.min_p else -math.inf
    return Choice(
        is_drawn=is_drawn,
        is_scaled=params.repetition_penalty != 1.0,
        is_biased=bool(params.logit_bias or params.sequence_bias),
        is_plain=not is_drawn and edits.is_plain_at(row.num_output),
        temperature=temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        depth=depth,
        typical_p=params.typical_p if params.typical_p < 1.0 else ALL,
        epsilon=params.epsilon_cutoff,
        eta=params.eta_cutoff,
        xtc=_xtc(row) if is_drawn else ALL,
        keys=keys(row.sequence.seed, row.num_output) if is_drawn else (0, 0),
        banned=edits.banned,
        changes=changes,
    )


def _xtc(row: Row) -> float:
    """Return the XTC threshold of a row; over 1 where XTC does not apply."""
    params, sequence = row.sequence.params, row.sequence
    if not params.xtc_probability or params.xtc_threshold > MAX_XTC_THRESHOLD:
        return ALL
    is_due = uniform(sequence.seed, row.num_output, "xtc") <= params.xtc_probability
    return params.xtc_threshold if is_due else ALL


class Columns(NamedTuple):
    """The choices of some rows as arrays ``[rows, 1]``; see :class:`Choice`.

    Attributes:
        order: 0, 1, 2...
        rows: indices of the rows in the step.
        temperatures: float64: divide the logits.
        top_p: float64, between 0 and 1.
        depths: float64, at most 0.
        typical_p: float64; over 1 for all tokens.
        epsilon: float64.
        eta: float64.
        xtc: float64; over 1 for all tokens.
        last: index of the last token that top-k keeps, likeliest first.
        first: first words of the rows' keys.
        second: second words of the rows' keys.
        masks: the bits of the noise that count: all, or none in rows that are not drawn.
        half: float64: 0.5.
        lowest: float64: minus infinity.
        floors: float32: minus infinity, to be raised.
    """

    order: Any
    rows: Any
    temperatures: Any
    top_p: Any
    depths: Any
    typical_p: Any
    epsilon: Any
    eta: Any
    xtc: Any
    last: Any
    first: Any
    second: Any
    masks: Any
    half: Any
    lowest: Any
    floors: Any


class Changed(NamedTuple):
    """The changes of a batch's logits as arrays ``[changes]``; see :class:`LogitChanges`.

    Attributes:
        rows: rows of the batch.
        token_ids: columns; no pair of row and token occurs twice.
        offsets: float32: added first.
        factors: float32: multiply logits that are not positive.
        inverses: float32: multiply positive logits.
        shifts: float32: added afterwards.
    """

    rows: Any
    token_ids: Any
    offsets: Any
    factors: Any
    inverses: Any
    shifts: Any


def columns(choices: Seq[Choice], rows: Seq[int], vocab_size: int) -> Columns:
    """Return the choices of some rows as columns."""
    some = [choices[row] for row in rows]
    return Columns(
        order=_column(range(len(some)), np.int64),
        rows=_column(rows, np.int64),
        temperatures=_column([c.temperature for c in some], np.float64),
        top_p=_column([c.top_p for c in some], np.float64),
        depths=_column([c.depth for c in some], np.float64),
        typical_p=_column([c.typical_p if c.is_drawn else ALL for c in some], np.float64),
        epsilon=_column([c.epsilon if c.is_drawn else 0.0 for c in some], np.float64),
        eta=_column([c.eta if c.is_drawn else 0.0 for c in some], np.float64),
        xtc=_column([c.xtc for c in some], np.float64),
        last=_column([min(c.top_k or vocab_size, vocab_size) - 1 for c in some], np.int64),
        first=_column([c.keys[0] for c in some], np.int64),
        second=_column([c.keys[1] for c in some], np.int64),
        masks=_column([WORD if c.is_drawn else 0 for c in some], np.int64),
        half=np.full((len(some), 1), 0.5),
        lowest=np.full((len(some), 1), -math.inf),
        floors=np.full((len(some), 1), -math.inf, np.float32),
    )


def changed(choices: Seq[Choice], vocab_size: int) -> Changed:
    """Return the changes of a batch's logits.

    Tokens without a logit are left out: a prompt may hold some, such as image placeholders.
    """
    changes = [c.changes for c in choices]
    factors = np.concatenate([each.factors for each in changes])
    made = Changed(
        rows=np.repeat(np.arange(len(choices)), [len(each.token_ids) for each in changes]),
        token_ids=np.concatenate([each.token_ids for each in changes]),
        offsets=np.concatenate([each.offsets for each in changes]),
        factors=factors,
        inverses=1 / factors,
        shifts=np.concatenate([each.shifts for each in changes]),
    )
    has_logit = made.token_ids < vocab_size
    return made if has_logit.all() else Changed(*(array[has_logit] for array in made))


def apply(xp: Any, logits: Any, changes: Changed, choices: Seq[Choice]) -> None:
    """Change logits ``[rows, vocab]`` float32 in place, as the choices of the rows ask for."""
    where = changes.rows, changes.token_ids
    values = logits[where]
    if any(c.is_biased for c in choices):
        values = values + changes.offsets
    if any(c.is_scaled for c in choices):
        values = values * xp.where(values > 0, changes.inverses, changes.factors)
    logits[where] = values + changes.shifts


def send(xp: Any, device: Any, *groups: Any) -> list[Any]:
    """Return tuples of NumPy arrays on a device; all are sent in one copy."""
    arrays = [array for group in groups for array in group]
    padded = [np.pad(array.reshape(-1).view(np.uint8), (0, -array.nbytes % 8)) for array in arrays]
    sent = xp.asarray(np.concatenate(padded).view(np.int64), device=device)
    moved, start = [], 0
    for array in arrays:
        stop = start + (array.nbytes + 7) // 8
        part = sent[start:stop].view(getattr(xp, array.dtype.name))
        moved.append(part[: array.size].reshape(array.shape))
        start = stop
    rest = iter(moved)
    return [type(group)(*(next(rest) for _ in group)) for group in groups]


def _column(values: Seq[float], dtype: Any) -> Any:
    return np.array(values, dtype=dtype)[:, None]
