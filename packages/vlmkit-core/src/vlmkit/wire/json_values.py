"""JSON values of requests, such as tool definitions: of any content, but bounded depth.

Integers of any size are kept, because a JSON schema may hold larger ones than MessagePack does.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from vlmkit.errors import WireError
from vlmkit.wire.buffers import NotSerializable

MAX_DEPTH = 128
LARGE_INTEGER = 1
"""The code of the extension type for integers outside of 64 bits, in two's complement."""

MAX_INTEGER_BYTES = 4096
_MIN, _MAX = -(2**63), 2**64 - 1


def pack_json(value: Any, depth: int = 0) -> Any:
    """Return a JSON value as MessagePack holds it.

    Raises:
        NotSerializable: it holds a value that is not JSON's, or is too deep.
    """
    kind = type(value)
    if kind is str or kind is bool or kind is float or value is None:
        return value
    if kind is int:
        return value if _MIN <= value <= _MAX else _extension(value)
    if depth >= MAX_DEPTH:
        raise NotSerializable(f"a value with a depth over {MAX_DEPTH}")
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise NotSerializable("a mapping with keys that are not texts")
        return {key: pack_json(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [pack_json(each, depth + 1) for each in value]
    raise NotSerializable(f"a value of type {kind.__name__}")


def unpack_json(value: Any, depth: int = 0) -> Any:
    """Return a decoded JSON value after checking it.

    Raises:
        WireError: it holds a value that is not JSON's, or is too deep.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or kind is float or value is None:
        return value
    if depth >= MAX_DEPTH:
        raise WireError(f"a message has a value with a depth over {MAX_DEPTH}")
    if kind is dict and all(type(key) is str for key in value):
        return {key: unpack_json(each, depth + 1) for key, each in value.items()}
    if kind is list:
        return [unpack_json(each, depth + 1) for each in value]
    raise WireError("a message has a value that is not JSON")


def extension(code: int, content: memoryview) -> int:
    """Return the integer of an extension; a hook of the decoder.

    Raises:
        WireError: the extension has another code, or is too long.
    """
    if code != LARGE_INTEGER or not 0 < len(content) <= MAX_INTEGER_BYTES:
        raise WireError("a message has a value of an unknown extension type")
    return int.from_bytes(content, "big", signed=True)


def _extension(value: int) -> msgspec.msgpack.Ext:
    num_bytes = value.bit_length() // 8 + 1
    if num_bytes > MAX_INTEGER_BYTES:
        raise NotSerializable("an integer of too many digits")
    return msgspec.msgpack.Ext(LARGE_INTEGER, value.to_bytes(num_bytes, "big", signed=True))
