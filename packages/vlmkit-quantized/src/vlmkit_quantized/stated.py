"""Reads fields of a ``quantization_config``, and rejects values that a format does not support."""

from collections.abc import Collection, Mapping
from typing import Any

from vlmkit_quantized.errors import FormatError

MAX_INTEGER = 2**31 - 1


class Stated:
    """The fields of a ``quantization_config``.

    Args:
        fields: the fields.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def get(self, *names: str) -> Any:
        """Return the first of some fields that is there and not null; else None."""
        values = (self._fields.get(name) for name in names)
        return next((value for value in values if value is not None), None)

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return an integer; a field that has no default must be there.

        Raises:
            FormatError: it is absent, no integer, or far too large.
        """
        value = self.get(*names)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_INTEGER:
            raise FormatError(f"its quantization_config needs an integer in {names[0]!r}")
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """Return a boolean.

        Raises:
            FormatError: it is something else.
        """
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FormatError(f"its quantization_config needs true or false in {names[0]!r}")
        return value

    def word(self, *names: str) -> str:
        """Return a text in small letters; empty if the field is absent.

        Raises:
            FormatError: it is something else.
        """
        value = self.get(*names)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise FormatError(f"its quantization_config needs a text in {names[0]!r}")
        return value.lower()

    def refuse(self, unsupported: Mapping[str, str]) -> None:
        """Reject fields that change what a model computes.

        Args:
            unsupported: what each field states, by its name.

        Raises:
            FormatError: one of them is there and neither null, false nor empty.
        """
        for name, what in unsupported.items():
            if self._fields.get(name):
                raise FormatError(f"its quantization has {what} ({name!r}), not supported")


def one_of(value: Any, allowed: Collection[Any], what: str) -> None:
    """Require one of some values.

    Raises:
        FormatError: it is another.
    """
    if value not in allowed:
        listed = ", ".join(map(str, allowed))
        raise FormatError(f"its quantization has {what} {value!r}, and supported are {listed}")


def check_group_size(size: int) -> None:
    """Require a number of columns in a group; -1 is a row.

    Raises:
        FormatError: it is neither.
    """
    if size != -1 and size <= 0:
        raise FormatError(f"its quantization has groups of {size} weights")
