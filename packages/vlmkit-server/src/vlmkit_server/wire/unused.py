"""Finds the keys of a JSON text that no field uses, at any depth; does not judge them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

MAX_KEYS = 2**16  # of all objects in a text: keys take memory while they are compared
START_BYTES = 256
LONG_BYTES = 2**14
MAX_QUOTES = 2**18
_KINDS = {
    b"{": "an object",
    b"[": "an array",
    b'"': "a string",
    b"t": "a boolean",
    b"f": "a boolean",
    b"n": "null",
}
_LONG = object()


class UnusedKey(NamedTuple):
    """A key without a field.

    Attributes:
        path: the dotted path, without list indices.
        start: the first bytes of its value.
    """

    path: str
    start: bytes

    @classmethod
    def of(cls, path: str, content: Raw) -> "UnusedKey":
        """Return the key of a value; only the first bytes are copied."""
        return cls(path, bytes(memoryview(content)[:START_BYTES]))

    @property
    def kind(self) -> str:
        """The JSON type of its value."""
        return _KINDS.get(self.start[:1], "a number")

    def value(self) -> Any:
        """Return its value if that is short; otherwise an object that equals nothing."""
        if len(self.start) == START_BYTES:
            return _LONG
        try:
            return msgspec.json.decode(self.start)
        except (ValueError, RecursionError):  # numbers and brackets were not decoded before
            return _LONG


class LeftOut(msgspec.Struct):
    """An object that may be ignored as a whole; then its type is reported, not its keys."""

    @property
    def left_out(self) -> str | None:
        """Its type, if it is ignored."""
        return str(self.__struct_config__.tag)


class _Key(str):
    """A key that is counted when it is read."""

    __slots__ = ()


def unused_keys(value: Struct, text: bytes) -> Iterator[UnusedKey]:
    """Yield the keys that a struct, and the structs in it, have no field for.

    Args:
        value: the decoded struct.
        text: the JSON text that it was decoded from.

    Raises:
        msgspec.ValidationError: there are too many keys.
        ValueError: a key is not UTF-8.
    """
    yield from _Comparison().of(value, _shortened(text), "")


class _Comparison:
    """Compares a JSON text with the structs that were decoded from it."""

    def __init__(self) -> None:
        self._num_keys = 0
        self._object = msgspec.json.Decoder(dict[_Key, Raw], dec_hook=self._counted)
        self._objects = msgspec.json.Decoder(list[dict[_Key, Raw]], dec_hook=self._counted)

    def of(self, value: Any, content: bytes | Raw, path: str) -> Iterator[UnusedKey]:
        """Yield unused keys; only a struct and a list of structs can have any."""
        if isinstance(value, Struct):
            yield from self._in(value, self._object.decode(content), path)
        elif isinstance(value, list) and value and isinstance(value[0], Struct):
            for struct, held in zip(value, self._objects.decode(content), strict=True):
                yield from self._in(struct, held, path)

    def _in(self, struct: Struct, held: Mapping[_Key, Raw], path: str) -> Iterator[UnusedKey]:
        if isinstance(struct, LeftOut) and (kind := struct.left_out) is not None:
            yield UnusedKey(f"{path}.{kind}", b"true")
            return
        for key, content in held.items():
            inner = f"{path}.{key}" if path else str(key)
            if key in struct.__struct_fields__:
                yield from self.of(getattr(struct, key), content, inner)
            elif key != struct.__struct_config__.tag_field:
                yield UnusedKey.of(inner, content)

    def _counted(self, kind: type[_Key], key: str) -> _Key:
        self._num_keys += 1
        if self._num_keys > MAX_KEYS:
            raise ValueError(f"the objects have more than {MAX_KEYS} keys")
        return kind(key)


def _shortened(text: bytes) -> bytes:
    """Return a JSON text without the content of its long strings.

    The text of a string is skipped once for each object around it, which is slow for images.
    """
    if len(text) < LONG_BYTES:
        return text
    pieces: list[bytes] = []
    start, is_inside = 0, False
    while len(pieces) < MAX_QUOTES and (end := text.find(b'"', start)) >= 0:
        is_escaped = (
            is_inside and _num_backslashes(text, start, end) % 2 == 1
        )  # the quote belongs to the string
        if is_inside and end - start > LONG_BYTES:
            pieces.append(b"\\" * is_escaped)
        else:
            pieces.append(text[start:end])
        start, is_inside = end + 1, is_escaped or not is_inside
    pieces.append(text[start:])
    return b'"'.join(pieces)


def _num_backslashes(text: bytes, start: int, end: int) -> int:
    """Count the backslashes before a quote; avoids copying a long string if possible."""
    last = text[max(start, end - LONG_BYTES) : end]
    if not last.strip(b"\\"):
        last = text[start:end]
    return len(last) - len(last.rstrip(b"\\"))
