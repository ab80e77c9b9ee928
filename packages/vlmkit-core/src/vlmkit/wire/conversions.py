"""How values of listed types become MessagePack, and back, by the annotations of their fields.

Each listed dataclass, named tuple or struct gets a struct that travels in its place. It is an array
that begins with the name of its type. While msgspec decodes, it checks names, lengths and types. So
no value of another type is ever constructed.
"""

import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence as Seq
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import numpy as np
from msgspec.structs import astuple

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.prompt import Array
from vlmkit.types.image import Image
from vlmkit.wire.buffers import (
    IncomingBuffers,
    NotSerializable,
    OutgoingBuffers,
    SentArray,
    SentImage,
)
from vlmkit.wire.failures import SentError, pack_error, unpack_error
from vlmkit.wire.json_values import pack_json, unpack_json

Pack = Callable[[Any, OutgoingBuffers], Any]
Unpack = Callable[[Any, IncomingBuffers], Any]
_PLAIN: frozenset[type[Any]] = frozenset({str, type(None)})
_NAMES = {"ndarray": np.ndarray}  # which annotations name without an import


class Conversion(NamedTuple):
    """The conversion of values of one annotation.

    Attributes:
        wire: the type that msgspec decodes.
        pack: makes a value of that type; None if values travel as they are.
        unpack: makes a value of the annotation; None if values travel as they are.
        only_normalizes: whether ``pack`` makes a value of the same annotation.
        as_they_are: types of values that ``pack`` and ``unpack`` return unchanged, which are most
            in messages; these need no call.
    """

    wire: Any
    pack: Pack | None = None
    unpack: Unpack | None = None
    only_normalizes: bool = False
    as_they_are: frozenset[type[Any]] = frozenset()

    @property
    def is_plain(self) -> bool:
        """Whether msgspec encodes and decodes the values itself."""
        return self.unpack is None and (self.pack is None or self.only_normalizes)


@dataclass(frozen=True, slots=True)
class Listed:
    """A listed type.

    Attributes:
        name: its name on the wire.
        kind: the type.
        fields: the annotations of its fields, by name, in order.
    """

    name: str
    kind: type[Any]
    fields: Mapping[str, Any]


class Conversions:
    """The conversions of a closed list of types.

    Args:
        listed: the types by their names on the wire.
        not_sent: types that annotations may name and whose values cannot be sent.

    Raises:
        TypeError: an annotation names another type.
    """

    def __init__(self, listed: Mapping[str, type[Any]], not_sent: Seq[type[Any]]) -> None:
        self._names = {kind: name for name, kind in listed.items()}
        self._not_sent = frozenset(not_sent)
        self._made: dict[Any, Conversion] = {
            Image: Conversion(SentImage, _pack_image, _unpack_image),
            np.ndarray: Conversion(SentArray, _pack_array, _unpack_array),
            Array: Conversion(SentArray, _pack_array, _unpack_array),
            VlmkitError: Conversion(SentError, _pack_error, _unpack_error),
            Any: Conversion(Any, _pack_json, _unpack_json),
        }

    def of(self, annotation: Any) -> Conversion:
        """Return the conversion of an annotation."""
        if annotation in (int, str, bool, type(None)) or get_origin(annotation) is Literal:
            return Conversion(annotation)
        if annotation is float:
            same = frozenset({float})
            return Conversion(float, _pack_float, only_normalizes=True, as_they_are=same)
        if annotation is bytes:
            return Conversion(bytes | int, _pack_bytes, _unpack_bytes)
        if annotation not in self._made:
            self._made[annotation] = self._make(annotation)
        return self._made[annotation]

    def _make(self, annotation: Any) -> Conversion:
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is np.ndarray:
            return self.of(np.ndarray)
        if origin is Annotated:
            inner = self.of(args[0])
            return inner._replace(wire=Annotated[(inner.wire, *args[1:])])
        if origin in (Union, types.UnionType):
            return self._union(args)
        if origin is tuple and args[-1] is not ...:
            return self._fixed([self.of(each) for each in args])
        if origin in (tuple, list, frozenset, set, Seq):
            return _sequence(origin, self.of(args[0]))
        if origin in (dict, Mapping):
            return _mapping(self.of(args[0]), self.of(args[1]))
        if annotation in self._names:
            return self._struct(describe(self._names[annotation], annotation))
        raise TypeError(f"{annotation!r} is not among the listed types of the wire codec")

    def _struct(self, listed: Listed) -> Conversion:
        """Return the conversion of a listed type, whose struct is made here."""
        each = {name: self.of(kind) for name, kind in listed.fields.items()}
        if _is_native(listed, each.values()):
            return Conversion(listed.kind)
        sent = msgspec.defstruct(
            f"Sent{listed.kind.__name__}",
            [(name, conversion.wire) for name, conversion in each.items()],
            tag=listed.name,
            array_like=True,
            frozen=True,
            gc=False,
            forbid_unknown_fields=True,
        )
        pack = _packer(sent, _fields_of(listed.kind, tuple(each)), list(each.values()))
        unpack = _unpacker(_constructor(listed.kind, tuple(each)), list(each.values()))
        return Conversion(sent, pack, unpack)

    def _union(self, args: Seq[Any]) -> Conversion:
        """Return the conversion of a union, whose values are told apart by their types."""
        packs: dict[type[Any], Pack | None] = {}
        unpacks: dict[type[Any], Unpack | None] = {}
        wires: list[Any] = []
        other = Conversion(None)  # of the one member without a type of its own
        for arg in args:
            if arg in self._not_sent:
                packs[arg] = _refuse
                continue
            made = self.of(arg)
            wires.append(made.wire)
            kind = get_origin(arg) or arg
            if arg in self._names or kind in (Image, np.ndarray):
                packs[kind], unpacks[made.wire] = made.pack, made.unpack
            elif not made.is_plain or (made.only_normalizes and int not in args):
                other = made
        wire: Any = operator.getitem(Union, tuple(wires))  # of a list of types
        if not any((*packs.values(), *unpacks.values(), other.pack, other.unpack)):
            return Conversion(wire)
        plain = frozenset(kind for kind, convert in packs.items() if convert is None)
        unpack = partial(_unpack_one_of, unpacks, other.unpack)
        has_unpack = any((*unpacks.values(), other.unpack))
        return Conversion(
            wire,
            partial(_pack_one_of, packs, other.pack),
            unpack if has_unpack else None,
            only_normalizes=other.only_normalizes and not packs,
            as_they_are=_PLAIN | plain,
        )

    def _fixed(self, each: Seq[Conversion]) -> Conversion:
        """Return the conversion of a tuple with one annotation for each of its items."""
        wire: Any = types.GenericAlias(tuple, tuple(conversion.wire for conversion in each))
        if all(conversion.pack is None and conversion.unpack is None for conversion in each):
            return Conversion(wire)
        packs, unpacks = [c.pack for c in each], [c.unpack for c in each]

        def pack(value: Any, buffers: OutgoingBuffers) -> Any:
            both = zip(packs, value, strict=True)
            return [item if make is None else make(item, buffers) for make, item in both]

        def unpack(value: Any, buffers: IncomingBuffers) -> Any:
            both = zip(unpacks, value, strict=True)
            return tuple([item if make is None else make(item, buffers) for make, item in both])

        return Conversion(wire, pack, unpack if any(unpacks) else None)


def describe(name: str, kind: type[Any]) -> Listed:
    """Return the fields of a dataclass, a named tuple or a struct, with their annotations.

    Raises:
        TypeError: it is none of these.
    """
    if is_dataclass(kind):
        names: Seq[str] = [each.name for each in fields(kind) if each.init]
    elif issubclass(kind, msgspec.Struct):
        names = kind.__struct_fields__
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
    else:
        raise TypeError(f"{kind!r} is no dataclass, named tuple or struct")
    hints = get_type_hints(kind, localns=_NAMES, include_extras=True)
    return Listed(name, kind, {each: hints[each] for each in names})


def _fields_of(kind: type[Any], names: Seq[str]) -> Callable[[Any], Iterable[Any]]:
    """Return a function that returns the fields of a value, in order."""
    if issubclass(kind, msgspec.Struct):
        return astuple
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def _constructor(kind: type[Any], names: Seq[str]) -> Callable[..., Any]:
    """Return a function that makes a value of its fields, in order."""
    if kind.__match_args__ == names:
        return kind
    return lambda *found: kind(**dict(zip(names, found, strict=True)))


def _packer(sent: Any, fields_of: Callable[[Any], Iterable[Any]], each: Seq[Conversion]) -> Pack:
    """Return a function that makes the struct of a value."""
    packs = [(i, c.pack, c.as_they_are) for i, c in enumerate(each) if c.pack is not None]

    def pack(value: Any, buffers: OutgoingBuffers) -> Any:
        given = list(fields_of(value))
        for index, convert, as_they_are in packs:
            if type(field := given[index]) not in as_they_are:
                given[index] = convert(field, buffers)
        return sent(*given)

    return pack if packs else lambda value, _: sent(*fields_of(value))


def _unpacker(make: Callable[..., Any], each: Seq[Conversion]) -> Unpack:
    """Return a function that makes a value of its struct."""
    unpacks = [(i, c.unpack, c.as_they_are) for i, c in enumerate(each) if c.unpack is not None]

    def unpack(value: Any, buffers: IncomingBuffers) -> Any:
        found = list(astuple(value))
        for index, convert, as_they_are in unpacks:
            if type(field := found[index]) not in as_they_are:
                found[index] = convert(field, buffers)
        return make(*found)

    return unpack if unpacks else lambda value, _: make(*astuple(value))


def _is_native(listed: Listed, each: Iterable[Conversion]) -> bool:
    """Whether msgspec encodes and decodes a type itself: a struct of the same form."""
    if not issubclass(listed.kind, msgspec.Struct):
        return False
    config = listed.kind.__struct_config__
    is_plain = all(made.is_plain for made in each)
    return bool(is_plain and config.array_like and config.tag == listed.name)


def _sequence(origin: Any, item: Conversion) -> Conversion:
    container = {list: list, frozenset: frozenset, set: set}.get(origin, tuple)
    wire = list[item.wire] if container is not tuple else tuple[item.wire, ...]  # type: ignore[name-defined]
    is_set = container in (set, frozenset)
    if item.is_plain and not is_set:
        return Conversion(wire)

    def pack(value: Any, buffers: OutgoingBuffers) -> Any:
        return _each(item.pack, item.as_they_are, sorted(value) if is_set else value, buffers)

    def unpack(value: Any, buffers: IncomingBuffers) -> Any:
        return container(_each(item.unpack, item.as_they_are, value, buffers))

    return Conversion(wire, pack, unpack if item.unpack is not None or is_set else None)


def _each(convert: Any, as_they_are: frozenset[type[Any]], items: Any, buffers: Any) -> Any:
    """Return the items of a sequence, converted."""
    if convert is None:
        return items
    return [each if type(each) in as_they_are else convert(each, buffers) for each in items]


def _mapping(key: Conversion, item: Conversion) -> Conversion:
    wire = dict[key.wire, item.wire]  # type: ignore[name-defined]
    make, made = item.pack, item.unpack

    def pack(value: Any, buffers: OutgoingBuffers) -> Any:
        return {k: v if make is None else make(v, buffers) for k, v in value.items()}

    def unpack(value: Any, buffers: IncomingBuffers) -> Any:
        return {k: v if made is None else made(v, buffers) for k, v in value.items()}

    return Conversion(wire, pack, None if made is None else unpack)


def _pack_one_of(
    packs: Mapping[type[Any], Pack | None],
    other: Pack | None,
    value: Any,
    buffers: OutgoingBuffers,
) -> Any:
    kind = type(value)
    convert = packs.get(kind, other)
    return value if convert is None or kind in _PLAIN else convert(value, buffers)


def _unpack_one_of(
    unpacks: Mapping[type[Any], Unpack | None],
    other: Unpack | None,
    value: Any,
    buffers: IncomingBuffers,
) -> Any:
    kind = type(value)
    convert = unpacks.get(kind, other)
    return value if convert is None or kind in _PLAIN else convert(value, buffers)


def _refuse(value: Any, _: OutgoingBuffers) -> Any:
    raise NotSerializable(f"a value of type {type(value).__name__}")


def _pack_float(value: Any, _: OutgoingBuffers) -> float:
    return float(value)


def _pack_bytes(value: bytes, buffers: OutgoingBuffers) -> bytes | int:
    return buffers.pack_bytes(value)


def _unpack_bytes(value: bytes | int, buffers: IncomingBuffers) -> bytes:
    return buffers.unpack_bytes(value)


def _pack_image(value: Image, buffers: OutgoingBuffers) -> SentImage:
    return buffers.pack_image(value)


def _unpack_image(value: SentImage, buffers: IncomingBuffers) -> Image:
    return buffers.unpack_image(value)


def _pack_array(value: Any, buffers: OutgoingBuffers) -> SentArray:
    return buffers.pack_array(value)


def _unpack_array(value: SentArray, buffers: IncomingBuffers) -> Any:
    return buffers.unpack_array(value)


def _pack_error(value: VlmkitError, _: OutgoingBuffers) -> SentError:
    return pack_error(value)


def _unpack_error(value: SentError, _: IncomingBuffers) -> VlmkitError:
    return unpack_error(value)


def _pack_json(value: Any, _: OutgoingBuffers) -> Any:
    return pack_json(value)


def _unpack_json(value: Any, _: IncomingBuffers) -> Any:
    return unpack_json(value)
