"""What a measure finds in one area: a number, and the items that it counts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """One cell of a table.

    Attributes:
        number: what the table shows.
        items: what was counted, for ``--list``; empty where only a number makes sense.
    """

    number: float
    items: tuple[str, ...] = ()

    @classmethod
    def of(cls, items: list[str]) -> "Found":
        """Count items."""
        return cls(len(items), tuple(items))


Areas = dict[str, Found]
"""What one measure found, by area."""
