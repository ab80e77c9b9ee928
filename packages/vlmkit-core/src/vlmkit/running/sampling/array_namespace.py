"""The array API namespace of an array, whatever its library."""

from typing import Any

import array_api_compat
import numpy as np


def namespace_of(array: Any) -> Any:
    """Return the namespace of an array, standard in all that this package uses.

    NumPy's namespace is NumPy itself. The wrapper of array_api_compat copies all of NumPy's names,
    which imports unused modules and takes a tenth of a second at each start.
    """
    if array_api_compat.is_numpy_array(array):
        return np
    return array_api_compat.array_namespace(array)
