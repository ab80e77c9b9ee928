"""Grounding: the position in an image of an object that an answer names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroundedRegion:
    """A box or a point, in pixels of the upright image, from its top left corner.

    Attributes:
        label: the object's name in the answer; may be any text, or empty.
        box: left, top, right and bottom; None for a point.
        point: horizontal and vertical coordinate; None for a box.
    """

    label: str
    box: tuple[float, float, float, float] | None = None
    point: tuple[float, float] | None = None
