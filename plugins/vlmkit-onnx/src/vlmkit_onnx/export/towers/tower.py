"""What a family's exporter says about its tower; no tracing happens here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

ImageInputs = Mapping[str, NDArray[Any]]
"""A processor's arrays for one image."""


@dataclass(frozen=True, slots=True)
class Tower:
    """One model's tower and projector, ready to be traced.

    Attributes:
        module: takes the graph's inputs by name, returns the graph's outputs in order.
        outputs: their names.
        dynamic: by input, the axes whose sizes differ from call to call.
        samples: makes arrays as the family's processor would, for images of several sizes; those
            of the first size come first and are at least two.
    """

    module: nn.Module
    outputs: tuple[str, ...]
    dynamic: Mapping[str, Sequence[int]]
    samples: Callable[[np.random.Generator], list[ImageInputs]]
