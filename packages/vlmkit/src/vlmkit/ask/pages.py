"""Which pages of a document are meant."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vlmkit.errors import RequestError

MAX_CHARS = 256
_NUMBERS = re.compile(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?")


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages by their numbers, from 1, in their order.

    Attributes:
        runs: first and last of each run of pages; each begins behind the end of that before it.
    """

    runs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        end = 0
        for first, last in self.runs:
            if not end < first <= last:
                raise RequestError("pages must rise, each named once", param="pages")
            end = last
        if not self.runs:
            raise RequestError("pages must name a page", param="pages")

    @classmethod
    def of(cls, text: str) -> "Pages":
        """Read pages such as ``1-3,7``.

        Raises:
            RequestError: it is something else.
        """
        found = [_NUMBERS.fullmatch(run) for run in text[: MAX_CHARS + 1].split(",")]
        if len(text) > MAX_CHARS or not all(found):
            raise RequestError(
                f"pages must read 1-3,7 or the like, in up to {MAX_CHARS} characters",
                param="pages",
            )
        runs = (match.groups() for match in found if match)
        return cls(tuple((int(first), int(last or first)) for first, last in runs))

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.runs)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)

    def __str__(self) -> str:
        return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in self.runs)
