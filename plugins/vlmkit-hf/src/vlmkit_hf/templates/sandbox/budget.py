"""The budget of one rendering of a template: steps, bytes, characters and CPU time.

Counts and measures values. :mod:`vlmkit_hf.templates.sandbox.environment` decides what is counted.
"""

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from jinja2.runtime import LoopContext
from jinja2.utils import Namespace

from vlmkit.errors import RequestError

MAX_CHARS = 2**24
"""Characters of one text, and of the whole rendered text."""
MAX_BYTES = 2**28
"""Bytes of all values that one rendering creates, in use or not."""
MAX_ITEMS = 2**20
"""Items of one list, and nodes of one nested value that is written, compared or sorted."""
MAX_DEPTH = 64
MAX_INT_BITS = 2**12
MAX_CPU_S = 5.0
"""A second limit: all known templates reach the step limit first."""

CHARS_PER_STEP = 2**10
NODES_PER_STEP = 2**4
STEPS_PER_CLOCK = 2**9
ITEM_BYTES = 64
SMALL_CHARS = 64

_SCALARS = frozenset({bool, float, type(None)})


class TemplateTooCostly(RequestError):  # noqa: N818 - as those of vlmkit.errors
    """A chat template exceeds the limits of one rendering."""

    def __init__(self) -> None:
        super().__init__(
            "the model's chat template takes too long to write this conversation",
            param="messages",
            hint="send fewer messages, or fewer tools",
        )


class Budget:
    """The usage of one rendering, and its limits.

    Args:
        max_steps: the step limit.
    """

    __slots__ = ("_clock_at", "_deadline_s", "_max_steps", "_num_bytes", "_num_chars", "_num_steps")

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps
        self._num_steps = self._num_bytes = self._num_chars = 0
        self._clock_at = STEPS_PER_CLOCK
        self._deadline_s = time.thread_time() + MAX_CPU_S

    def step(self, number: int = 1) -> bool:
        """Count steps; always return True.

        Raises:
            TemplateTooCostly: the rendering exceeds its step limit or its CPU time.
        """
        self._num_steps += number
        if self._num_steps >= self._clock_at:
            self._clock_at = self._num_steps + STEPS_PER_CLOCK
            if self._num_steps > self._max_steps or time.thread_time() > self._deadline_s:
                raise TemplateTooCostly
        return True

    def write(self, num_chars: int) -> None:
        """Count characters that the template writes.

        Raises:
            TemplateTooCostly: the rendered text is too long.
        """
        self._num_chars += num_chars
        if self._num_chars > MAX_CHARS:
            raise TemplateTooCostly

    def count(self, value: Any) -> Any:
        """Count the memory of a new value; an iterator is counted while it is read.

        Returns:
            The value.

        Raises:
            TemplateTooCostly: the value, or all values together, are too large.
        """
        kind = type(value)
        if kind in _SCALARS:
            return value
        if isinstance(value, str):
            self._count_text(value)
        elif isinstance(value, int):
            check_int(value)
        elif isinstance(value, Collection):
            self._count_bytes(ITEM_BYTES * (1 + check_length(len(value))))
        elif isinstance(value, Iterator) and kind is not LoopContext:
            return self._counted(value)
        else:
            self._count_bytes(ITEM_BYTES)
        return value

    def count_part(self, value: Any) -> Any:
        """Count the memory of a new sequence whose items are not new: a sum or a slice.

        Raises:
            TemplateTooCostly: as for :meth:`count`.
        """
        if isinstance(value, list | tuple):
            self._count_bytes(8 * check_length(len(value)))
            return value
        return self.count(value)

    def measure(self, value: Any, chars_per_level: int = 0) -> int:
        """Return an upper bound of a value's written length; shared parts count each time.

        Args:
            value: a value to write, compare, hash or sort.
            chars_per_level: characters of indentation for each level.

        Raises:
            TemplateTooCostly: the value is too long, or nested too deeply.
        """
        if type(value) in _SCALARS:
            return 32
        if isinstance(value, str):
            num_chars = len(value)
        else:
            num_nodes, num_chars = _measured(value, chars_per_level)
            self.step(num_nodes // NODES_PER_STEP)
        if num_chars > SMALL_CHARS:
            check_chars(num_chars)
            self.step(num_chars // CHARS_PER_STEP)
        return num_chars

    def _count_text(self, text: str) -> None:
        if len(text) > SMALL_CHARS:
            check_chars(len(text))
            self._count_bytes(sys.getsizeof(text))
            self.step(len(text) // CHARS_PER_STEP)

    def _count_bytes(self, number: int) -> None:
        self._num_bytes += number
        if self._num_bytes > MAX_BYTES:
            raise TemplateTooCostly
        if number > CHARS_PER_STEP:
            self.step(number // CHARS_PER_STEP)

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item


def check_chars(number: int) -> None:
    """Refuse a text with too many characters.

    Raises:
        TemplateTooCostly: they are too many.
    """
    if number > MAX_CHARS:
        raise TemplateTooCostly


def check_length(number: int) -> int:
    """Return the number of items of a list.

    Raises:
        TemplateTooCostly: they are too many.
    """
    if number > MAX_ITEMS:
        raise TemplateTooCostly
    return number


def check_int(value: int) -> None:
    """Refuse an integer whose arithmetic would take long.

    Raises:
        TemplateTooCostly: the integer has too many bits.
    """
    if value.bit_length() > MAX_INT_BITS:
        raise TemplateTooCostly


def _measured(value: Any, chars_per_level: int) -> tuple[int, int]:
    """Return the number of nodes of a nested value, and of characters when it is written."""
    num_nodes = num_chars = 0
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        num_nodes += 1
        num_chars += 8 + depth * chars_per_level
        if isinstance(item, str):
            num_chars += len(item)
        elif isinstance(item, int):
            num_chars += item.bit_length() // 3
        elif (parts := _parts_of(item)) is not None:
            size, inner = parts
            check_length(num_nodes + len(pending) + size)
            if depth == MAX_DEPTH:
                raise TemplateTooCostly
            pending.extend((each, depth + 1) for each in inner)
        check_chars(num_chars)
    return num_nodes, num_chars


def _parts_of(value: Any) -> tuple[int, Iterable[Any]] | None:
    """Return the number of a container's parts, and the parts; None for other values.

    A namespace writes its values, so they count as its parts.
    """
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, Mapping):
        return 2 * len(value), chain.from_iterable(value.items())
    if isinstance(value, Collection) and not isinstance(value, range):
        return len(value), value
    return None
