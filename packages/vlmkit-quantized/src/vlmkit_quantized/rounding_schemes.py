"""The ways in which plain weights can be rounded to integers; ``rounding`` does it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundingScheme:
    """How weights are rounded.

    Attributes:
        name: of the scheme.
        bits: of a code.
        group_sizes: of inputs that share a scale, the preferred one first; empty if all inputs of
            an output share one.
        is_symmetric: whether the middle code is zero.
    """

    name: str
    bits: int
    group_sizes: tuple[int, ...]
    is_symmetric: bool

    def group_size(self, columns: int) -> int | None:
        """Return the inputs that share a scale, of a layer; None if no group size divides them."""
        if not self.group_sizes:
            return columns
        return next((size for size in self.group_sizes if columns % size == 0), None)


ROUNDING_SCHEMES: Mapping[str, RoundingScheme] = {
    "int8": RoundingScheme("int8", 8, (), is_symmetric=True),
    "int4": RoundingScheme("int4", 4, (128, 64, 32), is_symmetric=False),
}
"""By their names. A scale for each output loses little in 8 bits, and too much in 4."""
