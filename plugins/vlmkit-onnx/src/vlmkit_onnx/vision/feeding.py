"""Interfaces between images and a vision graph: the graph's inputs, and the rows of its outputs.

A *picture* is what a tower encodes at once: a whole image, or one tile of it. Pictures are
independent of each other, so pictures of one shape share a call. Runs no graph.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.vision.names import DEEPSTACK, FEATURES

AnyArray: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float32]
Group: TypeAlias = tuple[int, ...]
"""What the pictures of one call share: their shapes, and the graph's helper inputs."""


Run: TypeAlias = Callable[[Mapping[str, AnyArray]], dict[str, Floats]]
"""Runs a graph: from its inputs to its outputs, by name."""


class Computation(Protocol):
    """Computes the rows of images with one graph."""

    def compute(self, slots: Sequence[MediaSlot], run: Run) -> list[dict[str, Floats]]:
        """Return each image's rows ``[rows, hidden]``, by vlmkit's names.

        Raises:
            EngineError: an image's arrays do not fit the graph.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures of one image.

    Attributes:
        pixels: ``[pictures, ...]`` float.
        group: that all of them belong to.
    """

    pixels: AnyArray
    group: Group


class Feeding(Protocol):
    """The inputs and outputs of a graph of vlmkit's exporter, for one kind of tower."""

    def pictures(self, slot: MediaSlot) -> Pictures:
        """Return the pictures of an image.

        Raises:
            EngineError: its arrays do not fit this kind of tower.
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


class OrderedRows(msgspec.Struct, frozen=True):
    """A feeding whose images' rows are those of their pictures, in order."""

    def rows(
        self,
        slot: MediaSlot,  # noqa: ARG002
        outputs: Mapping[str, Floats],
    ) -> dict[str, Floats]:
        """Return the pictures' rows in order."""
        return {
            name: array.reshape(-1, array.shape[-1])
            for name, array in outputs.items()
            if name == FEATURES or name.startswith(DEEPSTACK)
        }


def array_of(slot: MediaSlot, name: str) -> AnyArray:
    """Return one of an image's arrays as a numpy array.

    Raises:
        EngineError: the image has no such array.
    """
    if name not in slot.inputs:
        raise EngineError(f"an image of this model needs {name!r} among its arrays")
    array = slot.inputs[name]
    return array if isinstance(array, np.ndarray) else np.from_dlpack(array)
