"""The interface of a kind of limit, and the choice of limits for a number of tokens."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from vlmkit.errors import RequestError
from vlmkit_hf.images.size import Size

Limits = dict[str, Any]
"""Additional arguments of an image processor; empty for its own settings."""

FIELD = "mm_processor_kwargs"


class Sizing(ABC):
    """The limits of one image processor, read from its checkpoint.

    Attributes:
        names: the settings that clients may send, by their usual names.
    """

    names: tuple[str, ...]

    @abstractmethod
    def from_client(self, given: Mapping[str, Any]) -> Limits:
        """Return the limits of a client's settings, whose names have been checked.

        Raises:
            RequestError: a value is out of range, or exceeds the checkpoint's.
        """

    @abstractmethod
    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Return the number of tokens of an image; 0 if it would be empty."""

    @abstractmethod
    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return the processor's arrays that determine an image's tokens, without pixels."""

    @abstractmethod
    def steps(self, limits: Limits) -> Sequence[int]:
        """Return the possible steps in ascending order, up to the given limits."""

    @abstractmethod
    def at(self, step: int, limits: Limits) -> Limits:
        """Return the limits reduced to a step."""

    def limits(self, given: Mapping[str, Any]) -> Limits:
        """Return the limits of a client's settings.

        Raises:
            RequestError: a name is unknown, or a value is out of range.
        """
        if not given.keys() <= set(self.names):
            raise RequestError(
                f"{FIELD} has a key that this model's image processor does not take from clients",
                param=FIELD,
                code="unsupported_parameter",
                hint=f"it takes {', '.join(self.names)}",
            )
        return self.from_client(given) if given else {}

    def fit(self, size: Size, most_tokens: int, limits: Limits) -> Limits:
        """Return the largest limits with which an image has at most ``most_tokens`` tokens.

        If there are none, return those with the fewest tokens. Return ``limits`` unchanged if no
        others make the image smaller.
        """

        def num_at(step: int) -> int:
            return self.num_tokens(size, self.at(step, limits))

        num_tokens = self.num_tokens(size, limits)
        if num_tokens <= most_tokens:
            return limits
        steps = self.steps(limits)
        first = bisect_left(steps, 1, key=num_at)  # below this the image is empty
        over = bisect_right(steps, most_tokens, key=num_at)
        step = steps[min(max(first, over - 1), len(steps) - 1)]
        return self.at(step, limits) if num_at(step) < num_tokens else limits


def number(given: Mapping[str, Any], name: str, most: int) -> int:
    """Return a client's limit.

    Raises:
        RequestError: it is not an integer from 1 to ``most``.
    """
    value = given[name]
    if type(value) is not int or not 1 <= value <= most:
        param = f"{FIELD}.{name}"
        raise RequestError(f"{param} must be a number from 1 to {most} for this model", param=param)
    return value


def edges(given: Mapping[str, Any], most: Mapping[str, int]) -> dict[str, int]:
    """Return the edges of a client's ``size``; empty if there is none.

    Raises:
        RequestError: it is not an object, or has other edges or larger ones.
    """
    size = given.get("size")
    if size is None:
        return {}
    if not isinstance(size, dict) or not size.keys() <= most.keys():
        param = f"{FIELD}.size"
        raise RequestError(f"{param} must have {' and '.join(most)} for this model", param=param)
    return {name: number(size, name, most[name]) for name in size}
