"""How a vision graph wants its images, and how its rows come back: the words, not the doing.

A *picture* is what a tower looks at in one piece: a whole image, or one tile of it. Pictures are
independent of each other, so that any that have the same shape share a call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import MediaSlot

AnyArray: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float32]
Group: TypeAlias = tuple[int, ...]
"""What pictures of one call have in common; of equal groups are the shapes and helper inputs."""


Run: TypeAlias = Callable[[Mapping[str, AnyArray]], dict[str, Floats]]
"""Runs a graph: from its inputs to its outputs, by name."""


class Computation(Protocol):
    """From images to rows, with one graph."""

    def compute(self, slots: Sequence[MediaSlot], run: Run) -> list[dict[str, Floats]]:
        """Return each image's rows ``[rows, hidden]``, by our own names.

        Raises:
            EngineError: an image's arrays do not fit the graph.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pictures:
    """One image, as its tower looks at it.

    Attributes:
        pixels: ``[pictures, ...]`` float.
        group: of them all.
    """

    pixels: AnyArray
    group: Group


class Feeding(Protocol):
    """One way in which graphs of our own exporter are fed."""

    def pictures(self, slot: MediaSlot) -> Pictures:
        """Take an image apart.

        Raises:
            EngineError: its arrays are not what this way of feeding knows.
        """
        ...

    def inputs(self, pixels: AnyArray, group: Group) -> dict[str, AnyArray]:
        """Return the graph's inputs for pictures of one group, stacked."""
        ...

    def rows(self, slot: MediaSlot, outputs: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return an image's rows ``[rows, hidden]`` by name, from its pictures' outputs.

        Args:
            slot: the image.
            outputs: by the graph's own names, ``[pictures, ...]``.
        """
        ...


def array_of(slot: MediaSlot, name: str) -> AnyArray:
    """Return one of an image's arrays as numpy's.

    Raises:
        EngineError: the image has no such array.
    """
    if name not in slot.inputs:
        raise EngineError(f"an image of this model needs {name!r} among its arrays")
    array = slot.inputs[name]
    return array if isinstance(array, np.ndarray) else np.from_dlpack(array)
