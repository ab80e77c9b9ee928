"""What a kind of limit must say, and how one is chosen that keeps to a number of tokens."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from vlmkit.errors import RequestError
from vlmkit_hf.images.size import Size

Limits = dict[str, Any]
"""What an image processor is called with besides its own options; empty for its own way."""

FIELD = "mm_processor_kwargs"


class Sizing(ABC):
    """The limits of one image processor, all of which it has from its checkpoint.

    Attributes:
        names: what clients may set, by the names that people know.
    """

    names: tuple[str, ...]

    @abstractmethod
    def asked(self, given: Mapping[str, Any]) -> Limits:
        """Return the limits that a client asks for; the names are known.

        Raises:
            RequestError: a value is out of range, or over what the checkpoint has.
        """

    @abstractmethod
    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Return how many tokens a picture becomes; 0 where nothing would be left of it."""

    @abstractmethod
    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return what the processor's arrays of a picture say of its tokens, and no pixels."""

    @abstractmethod
    def steps(self, limits: Limits) -> Sequence[int]:
        """Return numbers, from the least picture to what the limits allow."""

    @abstractmethod
    def at(self, step: int, limits: Limits) -> Limits:
        """Return the limits, made smaller."""

    def limits(self, given: Mapping[str, Any]) -> Limits:
        """Return the limits that a client asks for.

        Raises:
            RequestError: there is something else among them, or a value is out of range.
        """
        if not given.keys() <= set(self.names):
            raise RequestError(
                f"{FIELD} has a key that this model's image processor does not take from clients",
                param=FIELD,
                code="unsupported_parameter",
                hint=f"it takes {', '.join(self.names)}",
            )
        return self.asked(given) if given else {}

    def fitted(self, size: Size, most_tokens: int, limits: Limits) -> Limits:
        """Return the largest limits under which a picture has no more than so many tokens.

        Where it always has more, those under which it has the fewest; the same where no others make
        it smaller.
        """

        def num_at(step: int) -> int:
            return self.num_tokens(size, self.at(step, limits))

        num_tokens = self.num_tokens(size, limits)
        if num_tokens <= most_tokens:
            return limits
        steps = self.steps(limits)
        first = bisect_left(steps, 1, key=num_at)  # under it nothing is left of the picture
        over = bisect_right(steps, most_tokens, key=num_at)
        step = steps[min(max(first, over - 1), len(steps) - 1)]
        return self.at(step, limits) if num_at(step) < num_tokens else limits


def number(given: Mapping[str, Any], name: str, most: int) -> int:
    """Return a limit that a client set.

    Raises:
        RequestError: it is no number from 1 to what the checkpoint has.
    """
    value = given[name]
    if type(value) is not int or not 1 <= value <= most:
        place = f"{FIELD}.{name}"
        raise RequestError(f"{place} must be a number from 1 to {most} for this model", param=place)
    return value


def edges(given: Mapping[str, Any], most: Mapping[str, int]) -> dict[str, int]:
    """Return the edges of a ``size`` that a client set, if there is one.

    Raises:
        RequestError: it is no object, or has other edges or larger ones.
    """
    size = given.get("size")
    if size is None:
        return {}
    if not isinstance(size, dict) or not size.keys() <= most.keys():
        place = f"{FIELD}.size"
        raise RequestError(f"{place} must have {' and '.join(most)} for this model", param=place)
    return {name: number(size, name, most[name]) for name in size}
