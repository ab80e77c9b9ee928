"""Describes a family's vision tower for the exporter. Traces nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from vlmkit_onnx.vision.names import FEATURES
from vlmkit_onnx.vision.own import OwnFeeding

ImageInputs: TypeAlias = Mapping[str, NDArray[Any]]
"""A processor's arrays for one image."""


@dataclass(frozen=True, slots=True)
class Tower:
    """One model's tower and projector, ready to be traced.

    Attributes:
        module: takes the graph's inputs by name, returns the graph's outputs in order.
        feeding: the inputs and outputs of its graph.
        dynamic: by input, the axes whose sizes differ from call to call.
        samples: creates arrays as the family's processor would, for images of several sizes; the
            first two have one size.
        outputs: names of the graph's outputs.
    """

    module: nn.Module
    feeding: OwnFeeding
    dynamic: Mapping[str, Sequence[int]]
    samples: Callable[[np.random.Generator], list[ImageInputs]]
    outputs: tuple[str, ...] = (FEATURES,)


def noise(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Return random values in the range of normalized pixels."""
    return random.uniform(-1.8, 2.2, shape).astype(np.float32)
