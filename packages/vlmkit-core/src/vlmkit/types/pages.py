"""Selections of pages of a document; opens no document."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vlmkit.errors import MediaError, RequestError

MAX_CHARS = 256
_NUMBERS = re.compile(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?")


@dataclass(frozen=True, slots=True)
class Pages:
    """Page numbers from 1, in ascending order.

    Attributes:
        runs: first and last page of each run; each run begins after the end of the previous one.
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
        """Parse pages such as ``1-3,7``.

        Raises:
            RequestError: the text has another form, or its pages do not ascend.
        """
        found = [_NUMBERS.fullmatch(run) for run in text[: MAX_CHARS + 1].split(",")]
        if len(text) > MAX_CHARS or not all(found):
            raise RequestError(
                f"pages must read 1-3,7 or the like, in up to {MAX_CHARS} characters",
                param="pages",
            )
        runs = (match.groups() for match in found if match)
        return cls(tuple((int(first), int(last or first)) for first, last in runs))

    def within(self, num_pages: int, max_images: int) -> "Pages":
        """Return these pages after checking them against a document and a limit.

        Args:
            num_pages: number of pages of the document.
            max_images: maximum number of images of the request.

        Raises:
            MediaError: the document has fewer pages, or the selection is over the limit.
        """
        if self.runs[-1][1] > num_pages:
            raise MediaError(
                f"a document of {num_pages} pages does not have all that are chosen",
                param="messages",
                code="pages_not_found",
            )
        if len(self) > max_images:
            raise MediaError(
                f"{len(self)} pages are over the limit of {max_images} images",
                param="messages",
                code="too_many_images",
                hint=f'choose fewer: pages "1-{max_images}"' if max_images else "",
            )
        return self

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.runs)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)

    def __str__(self) -> str:
        return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in self.runs)
