"""Hidden states on their way from the engine's device to host memory."""

from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from vlmkit.interfaces.prompt import Array
from vlmkit.running.faults.attribution import Fault
from vlmkit.running.sampling.sampled_tokens import readable


def read_states(hidden: Array) -> NDArray[np.float32]:
    """Return hidden states ``[rows, hidden]`` in host memory; they are read at once.

    Raises:
        EngineError: one is not finite.
    """
    states: Any = readable(hidden)
    if not array_api_compat.is_numpy_array(states):
        states = np.from_dlpack(array_api_compat.to_device(states, "cpu"))
    if not np.isfinite(states).all():
        raise Fault("engine", "returned hidden states that are not finite")
    read: NDArray[np.float32] = states
    return read
