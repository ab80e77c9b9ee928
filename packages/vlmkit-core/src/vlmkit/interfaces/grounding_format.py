"""How a model writes places in pictures: data, of which a finder is made.

A place is two numbers, a point, or four, a box. What they count is the format's to say.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MarkedGrounding:
    """Places between marks of the model's own.

    Attributes:
        pattern: a regular expression of one thing and its places, linear in the text. Its group
            ``label`` is what the thing is called, if it is there, and ``places`` has the numbers.
        num_each: how many numbers make a place.
        extent: what numbers count at the right and lower edge of a picture; None where they are
            pixels of the picture that the model looked at.
        is_row_first: whether the way down comes before the way across.
    """

    pattern: str
    num_each: int = 4
    extent: int | None = 1000
    is_row_first: bool = False


@dataclass(frozen=True, slots=True)
class JsonGrounding:
    """Places as flat JSON objects, wherever they stand in a text.

    Attributes:
        box: the key of a box's four numbers.
        point: the key of a point's two.
        label: the key of what the thing is called.
        extent: as above.
    """

    box: str = "bbox_2d"
    point: str = "point_2d"
    label: str = "label"
    extent: int | None = 1000


GroundingFormat = MarkedGrounding | JsonGrounding
