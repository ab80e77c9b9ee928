"""Reads fields of a GGUF header by name, and rejects values that no model has.

Errors name the file and the field. Knows no family and no tokenizer.
"""

import math
from typing import Any

import numpy as np

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_file import GgufFile

MAX_INTEGER = 2**31 - 1


class Metadata:
    """The fields and tensors of a file.

    Attributes:
        name: the name of the file.
        file: its header.
        architecture: its ``general.architecture``.

    Args:
        name: the name of the file.
        file: its header.

    Raises:
        FormatError: it states no architecture.
    """

    def __init__(self, name: str, file: GgufFile) -> None:
        self.name = name
        self.file = file
        self.architecture = self.text("general.architecture")

    def error(self, problem: str, *, hint: str = "") -> FormatError:
        """Return an error about the file."""
        return FormatError(f"its GGUF file {self.name!r} {problem}", hint=hint)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; a field without a default must be there.

        Raises:
            FormatError: it is absent, no text, or no UTF-8.
        """
        value = self.file.fields.get(key, default)
        if not isinstance(value, str) or not _is_unicode(value):
            raise self.error(f"needs a text in {key!r}")
        return value

    def of_model(self, key: str) -> str:
        """Return the name of a field of the architecture."""
        return f"{self.architecture}.{key}"

    def has(self, key: str) -> bool:
        """Return whether there is a field."""
        return key in self.file.fields

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer, or zero; a field without a default must be there.

        Raises:
            FormatError: it is absent, something else, or far too large.
        """
        value = self.file.fields.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INTEGER:
            raise self.error(f"needs one number of 0 to {MAX_INTEGER} in {key!r}")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """Return an integer above zero; a field without a default must be there.

        Raises:
            FormatError: it is absent, something else, or far too large.
        """
        if not (found := self.integer(key, default)):
            raise self.error(f"needs a number above zero in {key!r}")
        return found

    def of_layers(self, key: str, default: int | None = None) -> list[int]:
        """Return a number of each layer: an array, or one number for all.

        Raises:
            FormatError: it is absent and has no default, something else, or of another length.
        """
        num = self.size(self.of_model("block_count"))
        if not isinstance(self.file.fields.get(key), np.ndarray):
            return [self.integer(key, default)] * num
        found = self.numbers(key, num)
        if not all(isinstance(each, int) and 0 <= each <= MAX_INTEGER for each in found):
            raise self.error(f"needs numbers of 0 to {MAX_INTEGER} in {key!r}")
        return found

    def real(self, key: str, default: float | None = None) -> float:
        """Return a finite number above zero; a field without a default must be there.

        Raises:
            FormatError: it is absent, or something else.
        """
        value = self.file.fields.get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        found = _shortest(value) if is_number else math.nan
        if not 0 < found < math.inf:
            raise self.error(f"needs a finite number above zero in {key!r}")
        return found

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean.

        Raises:
            FormatError: it is something else.
        """
        value = self.file.fields.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"needs true or false in {key!r}")
        return value

    def texts(self, key: str) -> list[str]:
        """Return an array of texts; empty if it is absent.

        Raises:
            FormatError: it is something else, or one is no UTF-8.
        """
        value: Any = self.file.fields.get(key, [])
        if not isinstance(value, list) or not all(map(_is_unicode, value)):
            raise self.error(f"needs an array of texts in {key!r}")
        return value

    def reals(self, key: str, num: int) -> list[float]:
        """Return an array of finite numbers.

        Raises:
            FormatError: it is absent, something else, or has another length.
        """
        found = list(map(_shortest, self.numbers(key, num)))
        if not all(map(math.isfinite, found)):
            raise self.error(f"needs finite numbers in {key!r}")
        return found

    def numbers(self, key: str, num: int) -> list[Any]:
        """Return an array of numbers.

        Raises:
            FormatError: it is absent, something else, or has another length.
        """
        value = self.file.fields.get(key)
        if not isinstance(value, np.ndarray) or len(value) != num:
            raise self.error(f"needs an array of {num} numbers in {key!r}")
        return list(value.tolist())


def _shortest(value: float) -> float:
    """Return what ``config.json`` stated: the shortest text of a file's float of 32 bits."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


def _is_unicode(text: str) -> bool:
    """Return whether a text has no bytes that are no UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
