"""The sampled batch: the chosen tokens of a step, with the log-probabilities that clients want.

Log-probabilities are the model's own, from the logits as the engine returned them. Everything is
read from the device in one copy, which may be awaited later. How tokens are chosen is the sampler's
business.
"""

import math
from collections.abc import Callable, Mapping, Sequence as Seq
from functools import partial
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

StartRead = Callable[[Array], Callable[[], Any]]
"""Starts to copy an array from a device; the returned function waits and returns the copy."""


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


def read_on_demand(array: Array) -> Callable[[], Any]:
    """Copy an array from its device only when the copy is asked for."""
    return lambda: array


def start_samples(
    logits: Any,
    token_ids: Any,
    params: Seq[SamplingParams],
    given: Mapping[int, int] = MappingProxyType({}),
    start_read: StartRead = read_on_demand,
) -> Callable[[], list[Sample]]:
    """Start to read the chosen tokens, with the log-probabilities that each request asks for.

    Args:
        logits: ``[rows, vocab]``, as :func:`readable` returns them.
        token_ids: ``[rows]`` integers, on the same device.
        params: the parameters of each row.
        given: by row, as in :func:`choose_tokens`; these tokens also get a rank.
        start_read: starts to copy from a device; unused for logits in host memory.

    Returns:
        A function that waits for the tokens and returns them. It raises an EngineError if an id is
        outside of the vocabulary, or has no finite logit.

    Raises:
        EngineError: there are more or fewer token ids than rows.
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
    read = _start_read(xp, parts, start_read)
    return partial(_finished, read, params, reporting, ranked, vocab_size)


def _finished(
    read: Callable[[], list[Any]],
    params: Seq[SamplingParams],
    reporting: list[int],
    ranked: list[int],
    vocab_size: int,
) -> list[Sample]:
    """Wait for the numbers of a step, and return its tokens."""
    picked, values, *reports = read()
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


def _start_read(xp: Any, parts: list[Any], start_read: StartRead) -> Callable[[], list[Any]]:
    """Start to copy arrays from their device at once; return a function that returns them as lists.

    Arrays in host memory are read now, since their memory may be used again.
    """
    if array_api_compat.is_numpy_array(parts[0]):
        lists = [part.tolist() for part in parts]
        return lambda: lists
    flat = xp.concat([xp.astype(xp.reshape(part, (-1,)), xp.float64) for part in parts])
    wait, shapes = start_read(flat), [tuple(part.shape) for part in parts]
    return lambda: _as_lists(wait().tolist(), shapes)


def _as_lists(flat: list[float], shapes: list[tuple[int, ...]]) -> list[Any]:
    """Cut numbers into lists of the given shapes."""
    read, start = [], 0
    for num_rows, *axes in shapes:
        width = math.prod(axes)
        stop = start + num_rows * width
        rows: list[Any] = flat[start:stop]
        if axes:
            rows = [rows[i : i + width] for i in range(0, len(rows), width)]
        read.append(rows)
        start = stop
    return read
