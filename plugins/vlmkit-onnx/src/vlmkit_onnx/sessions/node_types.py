"""NumPy's types for the element types of a graph's inputs and outputs."""

from typing import Any

import numpy as np

Dtypes = dict[str, np.dtype[Any]]
FLOATS: Dtypes = {"tensor(float)": np.dtype(np.float32), "tensor(float16)": np.dtype(np.float16)}
INTEGERS: Dtypes = {"tensor(int64)": np.dtype(np.int64), "tensor(int32)": np.dtype(np.int32)}
BOOLEANS: Dtypes = {"tensor(bool)": np.dtype(np.bool_)}
