"""Where in a picture something is that an answer speaks of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroundedRegion:
    """A box or a point, in pixels of the upright picture, from its left and its top.

    Attributes:
        label: what the answer calls it; may be anything, also nothing.
        box: left, top, right and bottom; None for a point.
        point: across and down; None for a box.
    """

    label: str
    box: tuple[float, float, float, float] | None = None
    point: tuple[float, float] | None = None
