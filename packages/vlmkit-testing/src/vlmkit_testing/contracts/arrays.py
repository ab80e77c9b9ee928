"""Arrays of any library as NumPy arrays, for comparisons."""

from typing import Any

import numpy as np

from vlmkit.interfaces.prompt import Array


def to_numpy(array: Array) -> "np.ndarray[Any, Any]":
    """Return a float64 copy on the host; understands NumPy and torch arrays of any float type."""
    value: Any = array
    if hasattr(value, "detach"):  # torch: NumPy knows neither its devices nor bfloat16
        value = value.detach().double().cpu()
    return np.array(np.from_dlpack(value), dtype=np.float64)
