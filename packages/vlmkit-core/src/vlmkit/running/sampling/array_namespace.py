"""The functions that compute with an array, of whatever library it is."""

from typing import Any

import array_api_compat
import numpy as np


def namespace_of(array: Any) -> Any:
    """Return an array's namespace, as the standard has it where this package uses it.

    NumPy is its own: what array_api_compat has in its place copies all of NumPy's names, and with
    them imports modules that nobody uses, which takes a tenth of a second of each start.
    """
    if array_api_compat.is_numpy_array(array):
        return np
    return array_api_compat.array_namespace(array)
