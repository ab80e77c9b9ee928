"""How a vision graph wants its images, and how its rows come back: the words, not the doing.

A *picture* is what a tower looks at in one piece: a whole image, or one tile of it. Pictures are
independent of each other, so that any that have the same shape share a call.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vlmkit.prompt import Array, ImageSlot

AnyArray = NDArray[Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pictures:
    """One image, as its tower looks at it.

    Attributes:
        pixels: ``[pictures, ...]`` float.
        group: pictures of equal groups have the same shape and the same helper inputs.
    """

    pixels: AnyArray
    group: Hashable


class Feeding(Protocol):
    """One way in which graphs are fed."""

    def pictures(self, slot: ImageSlot) -> Pictures:
        """Take an image apart.

        Raises:
            EngineError: its arrays are not what this way of feeding knows.
        """
        ...

    def inputs(self, pixels: AnyArray, group: Hashable) -> dict[str, AnyArray]:
        """Return the graph's inputs for pictures of one group, stacked."""
        ...

    def rows(self, slot: ImageSlot, outputs: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return an image's rows ``[rows, hidden]`` by name, from its pictures' outputs.

        Args:
            slot: the image.
            outputs: by the graph's own names; ``[pictures, rows, hidden]`` those that have rows.
        """
        ...


def to_numpy(array: Array) -> AnyArray:
    """Return any array of a slot as numpy's."""
    return array if isinstance(array, np.ndarray) else np.from_dlpack(array)
