"""The reference sampler: OpenAI's parameters and the usual filters, on any array library.

What a row's token is, is decided by numbers alone (logits, parameters, tokens, seed, position), so
that no neighbour, no preemption and no library changes it. A temperature under 1e-5 and a top-k of
1 take the likeliest token, of equals the first; chance is Gumbel noise, see
:mod:`vlmkit.running.sampling.random_numbers`.
"""

from collections.abc import Sequence as Seq
from typing import Any

import array_api_compat

from vlmkit.interfaces.sampler import Pick, Row
from vlmkit.running.sampling.batch import choice
from vlmkit.running.sampling.on_device import sample_on_device
from vlmkit.running.sampling.on_host import sample_on_host


class ArraySampler:
    """Chooses by greedy, temperature, top-k, top-p, min-p, penalties and bias."""

    def __init__(self) -> None:
        self._token_ids: dict[tuple[int, Any], Any] = {}  # by number and device

    def prepare(self, rows: Seq[Row]) -> Pick:
        """Count tokens and look seeds up; see :meth:`Sampler.prepare`."""
        choices = [choice(row) for row in rows]

        def pick(logits: Any) -> Any:
            if array_api_compat.is_numpy_array(logits):
                return sample_on_host(logits.astype("float32", copy=False), choices)
            xp: Any = array_api_compat.array_namespace(logits)
            floats = xp.astype(logits, xp.float32, copy=False)
            return sample_on_device(xp, floats, self._ids(xp, floats), choices)

        return pick

    def _ids(self, xp: Any, logits: Any) -> Any:
        """Return all token ids on the logits' device; they are the same at every step."""
        place = logits.shape[-1], array_api_compat.device(logits)
        if place not in self._token_ids:
            self._token_ids[place] = xp.arange(place[0], dtype=xp.int64, device=place[1])
        return self._token_ids[place]
