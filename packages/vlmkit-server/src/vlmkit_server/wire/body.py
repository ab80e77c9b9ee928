"""How the JSON of a body becomes a struct, or a refusal that names the field and shows no value."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeVar, get_args

import msgspec
from msgspec import Raw

from vlmkit.errors import OutOfMemory, RequestError
from vlmkit_server.wire.ignored import shown_names
from vlmkit_server.wire.known_fields import ANSWERS, KnownFields, rejection, without_neutral
from vlmkit_server.wire.known_values import known_values
from vlmkit_server.wire.row import About
from vlmkit_server.wire.structure import check_structure
from vlmkit_server.wire.table import TABLE
from vlmkit_server.wire.unused import UnusedKey, unused_keys

B = TypeVar("B", bound=msgspec.Struct)
D = TypeVar("D", bound=msgspec.Struct)
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_RECEIVED = re.compile(r", got `(\w+)`")
_KINDS = {"str": "a string", "array": "an array", "object": "an object", "bool": "a boolean"}
_MAX_NEUTRAL = 8  # values of one body that are left out, one by one


@cache
def _with(names: frozenset[str]) -> type[msgspec.Struct]:
    """Return a struct with optional fields of any value."""
    return msgspec.defstruct("Added", [(name, Any, None) for name in sorted(names)])


@cache
def _of_targets(
    shape: type[msgspec.Struct], targets: frozenset[tuple[str, str]]
) -> type[msgspec.Struct]:
    """Return a struct of aliases, each with the type and the default of its target."""
    types = _types(shape)
    return msgspec.defstruct(
        "Aliased",
        [
            (alias, types[target], Raw() if types[target] is Raw else None)
            for alias, target in sorted(targets)
        ],
    )


@cache
def _types(shape: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(shape)}


def _fields_of(kind: Any) -> set[str]:
    """Return the fields of a struct that may be None."""
    return {name for each in get_args(kind) for name in getattr(each, "__struct_fields__", ())}


def _place(text: str) -> str:
    """Return the place that the text of a validation error names, without indices of lists."""
    found = _PLACE.search(text)
    return found.group(1).replace("[...]", "") if found else ""


def _is_given(value: Any) -> bool:
    return bool(len(value)) if isinstance(value, Raw) else value is not None


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Raw) and isinstance(other, Raw):
        return bytes(one) == bytes(other)
    return bool(one == other)


class BodyReader(Generic[B]):
    """Reads bodies of one shape.

    Args:
        shape: a struct.
        refused: fields, by their last name, that are refused unless their value is neutral.
        hints: fields that are read, and reported as keys without a field are.
        takes_added: whether such bodies may hold fields that plugins added to requests.
        about: what the body has that fields can change.
        inner: where it holds the fields that other bodies have at the top, with a dot, or empty.

    Attributes:
        shape: the struct.
        fields: of the struct itself.
        refused: those of them that are refused.
        hints, takes_added, about, inner: as above.
        known: the table of fields, as it applies here.
    """

    def __init__(
        self,
        shape: type[B],
        refused: Collection[str] = (),
        hints: Collection[str] = (),
        *,
        takes_added: bool = False,
        about: frozenset[About] = ANSWERS,
        inner: str = "",
    ) -> None:
        self._decoder = msgspec.json.Decoder(shape)
        self.shape = shape
        self.fields = frozenset(shape.__struct_fields__)
        self.refused = frozenset(refused) & self.fields
        self._refused_names = frozenset(refused)
        self.hints = frozenset(hints)
        self._optional = {f.name for f in msgspec.structs.fields(shape) if not f.required}
        self.takes_added = takes_added
        self.about, self.inner = about, inner
        own = self.fields - self.refused
        if inner:
            holder = next(f for f in msgspec.structs.fields(shape) if f"{f.name}." == inner)
            own |= _fields_of(holder.type)
        self.known = KnownFields(own, about, inner)

    def of(self, shape: type[D]) -> "BodyReader[D]":
        """Return a reader of another shape, which refuses fields of the same names."""
        return BodyReader(
            shape,
            self._refused_names,
            about=self.about,
            inner=self.inner,
        )

    def added(self, body: bytes, names: Collection[str]) -> dict[str, Any]:
        """Return what a body that was read says by fields that plugins added, but for nulls.

        Raises:
            RequestError: one holds what was read past before, and is no text or number.
            OutOfMemory: this machine has no room for it now.
        """
        if not names or not self.takes_added:
            return {}
        with self._refusing(body):
            found = msgspec.json.decode(body, type=_with(frozenset(names)))
        said = {name: getattr(found, name) for name in names}
        return {name: value for name, value in said.items() if value is not None}

    def read(self, body: bytes, added: Collection[str] = ()) -> tuple[B, frozenset[str]]:
        """Decode and check a body; return it with the names of keys that are ignored.

        Args:
            body: what was sent.
            added: fields that plugins added, which are nobody's to ignore here.

        Raises:
            RequestError: names the first field that is wrong, and never shows what it held.
            OutOfMemory: this machine has no room for it now.
        """
        check_structure(body)
        with self._refusing(body):
            made, body = self._decoded(body)
            known = added if self.takes_added else ()
            unused = [key for key in unused_keys(made, body) if key.place not in known]
            aliases = self.known.aliases
            ignored = self.known.ignored(key for key in unused if key.place not in aliases)
            self._set_aliases(made, [key for key in unused if key.place in aliases], body)
            idle = (n for n in self.hints if not TABLE[n].is_neutral(getattr(made, n)))
            return made, ignored | shown_names(idle)

    def _decoded(self, body: bytes) -> tuple[B, bytes]:
        """Return what a body says, and the body without neutral values that its types refuse."""
        for _ in range(_MAX_NEUTRAL):
            try:
                return self._decoder.decode(body), body
            except msgspec.ValidationError as error:
                name = _place(str(error))
                if name not in self._optional:
                    raise
                if (shorter := without_neutral(body, self.refused | {name})) is None:
                    raise
                body = shorter
        return self._decoder.decode(body), body

    def _set_aliases(self, made: B, keys: Collection[UnusedKey], body: bytes) -> None:
        """Give fields the values that a body says by their other names."""
        targets = {
            key.place: self.known.aliases[key.place]
            for key in keys
            if not self._is_moot(key, getattr(made, self.known.aliases[key.place]))
        }
        if not targets:
            return
        said = msgspec.json.decode(body, type=_of_targets(self.shape, frozenset(targets.items())))
        for alias, target in sorted(targets.items()):
            value, before = getattr(said, alias), getattr(made, target)
            if _is_given(before) and not _is_same(before, value):
                raise RequestError(f"{alias} and {target} differ; send one of them", param=alias)
            setattr(made, target, value)

    def _is_moot(self, key: UnusedKey, before: Any) -> bool:
        """Tell whether an alias has a neutral value, and its field another one or none like it."""
        value = key.value()
        if value is None or not TABLE[key.place].is_neutral(value):
            return value is None
        if _is_given(before):
            return True
        try:
            msgspec.convert(value, _types(self.shape)[self.known.aliases[key.place]])
        except msgspec.ValidationError:
            return True
        return False

    @contextmanager
    def _refusing(self, body: bytes) -> Iterator[None]:
        """Make refusals of what decoding raises."""
        try:
            yield
        except MemoryError as error:
            raise OutOfMemory("this body") from error
        except msgspec.ValidationError as error:
            raise self._refusal(str(error), body) from None
        except (ValueError, RecursionError):  # DecodeError and UnicodeDecodeError are ValueErrors
            raise RequestError("the body is not valid JSON", code="invalid_json") from None

    def _refusal(self, text: str, body: bytes) -> RequestError:
        """Say what a validation error means, without the values that its text may quote."""
        found = _PLACE.search(text)
        place = _place(text)
        if place.rpartition(".")[2] in self._refused_names:
            received = _RECEIVED.search(text)
            kind = _KINDS.get(received.group(1), "a number") if received else "a value"
            return rejection(place, self.known.row(place), kind)
        if text.startswith("Invalid enum value"):
            message = f"{place} is not supported with this value by this server"
            message += self._expected(found, body)
            return RequestError(message, param=place, code="unsupported_parameter")
        if text.startswith("Invalid value"):
            message = f"{place} has a value that this server does not support"
            message += self._expected(found, body)
            return RequestError(message, param=place, code="unsupported_value")
        wrong = text[: found.start()] if found else text
        return RequestError(f"{place or 'the body'}: {wrong}", param=place or None)

    def _expected(self, found: re.Match[str] | None, body: bytes) -> str:
        """Return which values are taken in a place, as the end of a sentence."""
        values = known_values(self.shape, found.group(1), body) if found else ()
        return f"; supported are {', '.join(values)}" if values else ""
