"""The formats in which models write boxes and points: data from which a finder is built.

A point is two numbers, a box four. The format defines their unit and order.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MarkedGrounding:
    """Boxes or points between special tokens of the model.

    Attributes:
        pattern: a regular expression for one object and its boxes or points, linear in the text.
            Its optional group ``label`` is the object's name, and ``places`` holds the numbers.
        num_each: numbers of one region: 2 for points, 4 for boxes.
        extent: the coordinate of the right and lower edges of the image; None if coordinates are
            pixels of the resized image that the model receives.
        is_row_first: whether the vertical coordinate comes before the horizontal one.
    """

    pattern: str
    num_each: int = 4
    extent: int | None = 1000
    is_row_first: bool = False


@dataclass(frozen=True, slots=True)
class JsonGrounding:
    """Boxes and points as flat JSON objects, anywhere in a text.

    Attributes:
        box: the key of a box's four numbers.
        point: the key of a point's two numbers.
        label: the key of the object's name.
        extent: as in :class:`MarkedGrounding`.
    """

    box: str = "bbox_2d"
    point: str = "point_2d"
    label: str = "label"
    extent: int | None = 1000


GroundingFormat = MarkedGrounding | JsonGrounding
