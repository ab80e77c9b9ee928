"""The sampled batch: the chosen tokens of a step, with the log-probabilities that clients want.

Log-probabilities are the model's own, from the logits as the engine returned them. Everything is
read from the device in one copy. How tokens are chosen is the sampler's business.
"""

import math
from collections.abc import Mapping, Sequence as Seq
from types import MappingProxyType
from typing import Any

import array_api_compat
import numpy as np

from vlmkit.interfaces.prompt import Array
from vlmkit.interfaces.sampler import Pick
from vlmkit.running.faults.attribution import Fault
from vlmkit.running.sampling.array_namespace import namespace_of
from vlmkit.types.sample import Logprob, Sample
from vlmkit.types.sampling import MAX_TOP_LOGPROBS, SamplingParams

HOST, METAL = 1, 8  # DLPack's numbers of the CPU and of Apple's GPU


def readable(logits: Array) -> Any:
    """Return logits as float32, and as a NumPy array if they are in host memory.

    Logits on Apple's GPU are copied to host memory, since that GPU has no float64.
    """
    xp: Any = namespace_of(logits)
    floats = xp.astype(logits, xp.float32, copy=False)
    device_type = floats.__dlpack_device__()[0]
    if device_type == METAL:
        floats = array_api_compat.to_device(floats, "cpu")
    return np.from_dlpack(floats) if device_type in (HOST, METAL) else floats


def choose_tokens(logits: Any, pick: Pick | None, given: Mapping[int, int]) -> Any:
    """Return token ids ``[rows]``: the given ones, and sampled ones for all other rows.

    Args:
        logits: ``[rows, vocab]``, as :func:`readable` returns them.
        pick: chooses the tokens of the rows without a given one; None if there are none.
        given: the given token ids, by row.

    Raises:
        EngineError: the sampler returned another number of tokens.
    """
    if pick is not None and not given:
        return pick(logits)
    xp: Any = namespace_of(logits)
    device = array_api_compat.device(logits)
    rows = range(logits.shape[0])
    token_ids = xp.asarray([given.get(row, 0) for row in rows], dtype=xp.int64, device=device)
    if pick is not None:
        free = [row for row in rows if row not in given]
        indices = xp.asarray(free, device=device)
        found = _checked(logits, pick(logits[indices, :]), len(free))
        token_ids[indices] = xp.astype(found, xp.int64)
    return token_ids


def samples(
    logits: Any,
    token_ids: Any,
    params: Seq[SamplingParams],
    given: Mapping[int, int] = MappingProxyType({}),
) -> list[Sample]:
    """Return the chosen tokens, with the log-probabilities that each request asks for.

    Args:
        logits: ``[rows, vocab]``, as :func:`readable` returns them.
        token_ids: ``[rows]`` integers, on the same device.
        params: the parameters of each row.
        given: by row, as in :func:`choose_tokens`; these tokens also get a rank.

    Raises:
        EngineError: there are more or fewer token ids, or one has no finite logit.
    """
    xp: Any = namespace_of(logits)
    vocab_size = logits.shape[-1]
    token_ids = _checked(logits, token_ids, len(params))
    inside = token_ids % vocab_size  # ids outside of the vocabulary are refused once they are read
    device = array_api_compat.device(logits)
    parts = [token_ids, logits[xp.arange(len(params), device=device), inside]]
    reporting = [row for row, own in enumerate(params) if own.logprobs]
    if reporting:
        parts += _reports(xp, logits, reporting, any(own.top_logprobs for own in params))
    ranked = [row for row in reporting if row in given]
    if ranked:
        parts.append(_ranks(xp, logits, inside, ranked))
    picked, values, *reports = _read(xp, parts)
    ranks = dict(zip(ranked, map(int, reports.pop()), strict=True)) if ranked else {}
    _check(picked, values, vocab_size)
    made = list(map(Sample, map(int, picked)))
    for row, log_sum, *top in zip(reporting, *reports, strict=True):
        pairs = zip(*(numbers[: params[row].top_logprobs] for numbers in top), strict=True)
        likeliest = tuple(Logprob(int(token_id), value - log_sum) for token_id, value in pairs)
        token_id, logprob = made[row].token_id, values[row] - log_sum
        made[row] = Sample(token_id, logprob, likeliest, ranks.get(row))
    return made


def _checked(logits: Any, token_ids: Any, num_rows: int) -> Any:
    """Return a sampler's token ids, as an array of the logits' library."""
    if getattr(token_ids, "shape", None) != (num_rows,):
        raise Fault("sampler", f"returned something other than {num_rows} token ids")
    return np.from_dlpack(token_ids) if array_api_compat.is_numpy_array(logits) else token_ids


def _check(token_ids: Seq[float], logits: Seq[float], vocab_size: int) -> None:
    """Raise if a token id is out of range, or its logit is not finite."""
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise Fault("sampler", f"returned the token id {token_id:.0f} of {vocab_size}")
    if not all(map(math.isfinite, logits)):
        raise Fault("engine", "returned logits without a finite value at the chosen token")


def _reports(xp: Any, logits: Any, reporting: list[int], has_top: bool) -> list[Any]:
    """Return for some rows the log of their summed exponentials, and the likeliest tokens.

    The number of likeliest tokens is always the same, so that no other row of the batch changes the
    order of equals.
    """
    rows = _rows(xp, logits, reporting)
    largest = xp.max(rows, axis=-1, keepdims=True)
    sums = xp.sum(xp.exp(rows - largest), axis=-1)
    log_sums = largest[:, 0] + xp.log(sums)
    if not has_top:
        return [log_sums]
    token_ids = _likeliest(xp, rows, min(MAX_TOP_LOGPROBS, rows.shape[-1]))
    return [log_sums, token_ids, xp.take_along_axis(rows, token_ids, axis=-1)]


def _ranks(xp: Any, logits: Any, token_ids: Any, indices: list[int]) -> Any:
    """Return the exact ranks of some rows' tokens, by counting; each row is independent."""
    rows, chosen = _rows(xp, logits, indices), _rows(xp, token_ids, indices)[:, None]
    own = xp.take_along_axis(rows, xp.astype(chosen, xp.int64), axis=-1)
    others = xp.arange(rows.shape[-1], device=array_api_compat.device(logits))[None, :]
    is_before = (rows > own) | ((rows == own) & (others < chosen))
    return 1 + xp.sum(xp.astype(is_before, xp.int64), axis=-1)


def _rows(xp: Any, array: Any, indices: list[int]) -> Any:
    """Return some rows of an array; no copy is made if they are all rows."""
    if len(indices) == array.shape[0]:
        return array
    return array[xp.asarray(indices, device=array_api_compat.device(array)), ...]


def _likeliest(xp: Any, rows: Any, num: int) -> Any:
    """Return the ids of each row's likeliest tokens, likeliest first."""
    if not array_api_compat.is_numpy_array(rows):
        return xp.argsort(rows, axis=-1, descending=True, stable=True)[:, :num]
    num_others = rows.shape[-1] - num
    token_ids = np.argpartition(rows, num_others, axis=-1)[:, num_others:]
    values = np.take_along_axis(rows, token_ids, axis=-1)
    return np.take_along_axis(token_ids, np.lexsort((token_ids, -values), axis=-1), axis=-1)


def _read(xp: Any, parts: list[Any]) -> list[Any]:
    """Return arrays as lists, read from the device in one copy."""
    if array_api_compat.is_numpy_array(parts[0]):
        return [part.tolist() for part in parts]
    flat = xp.concat([xp.astype(xp.reshape(part, (-1,)), xp.float64) for part in parts]).tolist()
    read, start = [], 0
    for part in parts:
        width = math.prod(part.shape[1:])
        stop = start + part.shape[0] * width
        rows = flat[start:stop]
        if part.ndim > 1:
            rows = [rows[i : i + width] for i in range(0, len(rows), width)]
        read.append(rows)
        start = stop
    return read
