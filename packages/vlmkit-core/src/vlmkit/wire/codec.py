"""The codec: a value of a listed type to a frame, and a frame to the value.

A codec knows a closed list of types by stable names, so a message can name no other type and run no
code. :data:`WIRE` knows the types of requests and answers. A protocol on top adds messages of its
own: ``Codec(TYPES | {"runner.submit": Submit})``.
"""

import operator
from collections.abc import Mapping
from typing import Any, Union

import msgspec

from vlmkit.errors import VlmkitError, WireError
from vlmkit.wire.buffers import NO_BUFFERS, IncomingBuffers, NotSerializable, OutgoingBuffers
from vlmkit.wire.conversions import Conversion, Conversions
from vlmkit.wire.frames import Frame
from vlmkit.wire.json_values import extension
from vlmkit.wire.type_names import NOT_SENT, TYPES

MALFORMED = "a message of another process is malformed"


class Codec:
    """Encodes and decodes values of a closed list of types; may be used from any thread.

    Args:
        types: the types by their names on the wire; errors need not be listed.

    Raises:
        TypeError: a field of a listed type has an annotation that is not listed.
    """

    def __init__(self, types: Mapping[str, type[Any]]) -> None:
        conversions = Conversions(types, NOT_SENT)
        self._by_type: dict[type[Any], Conversion] = {
            kind: conversions.of(kind) for kind in types.values()
        }
        self._error = conversions.of(VlmkitError)
        self._by_wire = {each.wire: each for each in (*self._by_type.values(), self._error)}
        wire: Any = operator.getitem(Union, tuple(self._by_wire))  # of a list of types
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            wire, ext_hook=extension
        )

    def encode(self, value: Any) -> Frame:
        """Return the frame of a value.

        Raises:
            NotSerializable: it holds a value whose type is not listed, or that is too deep.
        """
        buffers = OutgoingBuffers()
        made = self._by_type.get(type(value))
        if made is None:
            if not isinstance(value, VlmkitError):
                raise NotSerializable(f"a value of type {type(value).__name__}")
            made = self._error
        try:
            head = self._encoder.encode(value if made.pack is None else made.pack(value, buffers))
        except (TypeError, ValueError, OverflowError, RecursionError, AttributeError) as error:
            raise NotSerializable("a value of an unknown type, or too deep") from error
        return Frame(head, buffers.contents)

    def decode(self, frame: Frame) -> Any:
        """Return the value of a frame.

        Raises:
            WireError: the frame is malformed, or holds a value that its type refuses.
        """
        buffers = IncomingBuffers(frame.buffers) if frame.buffers else NO_BUFFERS
        try:
            sent = self._decoder.decode(frame.head)
            made = self._by_wire[type(sent)]
            value = sent if made.unpack is None else made.unpack(sent, buffers)
            buffers.check_all_used()
        except WireError:
            raise
        except (VlmkitError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise WireError(MALFORMED) from error
        return value


def _plain(value: Any) -> Any:
    """Return a number of NumPy, or a sequence, as msgspec encodes it.

    Raises:
        TypeError: it is neither.
    """
    if hasattr(value, "__index__"):
        return int(value)
    if hasattr(value, "__float__"):
        return float(value)
    if hasattr(value, "__len__") and hasattr(value, "__getitem__") and not hasattr(value, "keys"):
        return list(value)
    raise TypeError


WIRE = Codec(TYPES)
"""The codec of requests, answers and errors."""
