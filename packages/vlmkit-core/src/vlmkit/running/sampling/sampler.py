"""The reference sampler: OpenAI's parameters and the usual filters, on any array library.

The token of a row depends on its own logits, parameters, tokens, seed and position alone. So no
other row, no preemption and no array library changes it. A temperature below 1e-5 or a top-k of 1
takes the likeliest token, the first of equals. Randomness is Gumbel noise: see
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
    """Samples with temperature, filters, penalties and biases, or greedily."""

    def __init__(self) -> None:
        self._token_ids: dict[tuple[int, Any], Any] = {}  # by number and device

    def prepare(self, rows: Seq[Row]) -> Pick:
        """Compute the choice of each row; see :meth:`Sampler.prepare`."""
        choices = [choice(row) for row in rows]

        def pick(logits: Any) -> Any:
            if array_api_compat.is_numpy_array(logits):
                return sample_on_host(logits.astype("float32", copy=False), choices)
            xp: Any = array_api_compat.array_namespace(logits)
            floats = xp.astype(logits, xp.float32, copy=False)
            return sample_on_device(xp, floats, self._ids(xp, floats), choices)

        return pick

    def _ids(self, xp: Any, logits: Any) -> Any:
        """Return all token ids on the device of the logits, cached across steps."""
        key = logits.shape[-1], array_api_compat.device(logits)
        if key not in self._token_ids:
            self._token_ids[key] = xp.arange(key[0], dtype=xp.int64, device=key[1])
        return self._token_ids[key]
