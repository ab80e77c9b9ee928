"""Decodes the JSON of a body into a struct; errors name the field and never show a value."""

import re
from collections.abc import Collection, Iterator, Sequence
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
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_RECEIVED = re.compile(r", got `(\w+)`")
_KINDS = {"str": "a string", "array": "an array", "object": "an object", "bool": "a boolean"}
_MAX_NEUTRAL = 8  # neutral values of one body that are removed, one by one


@cache
def _with(names: frozenset[str]) -> type[msgspec.Struct]:
    """Return a struct with optional fields of any type."""
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


def _path(text: str) -> str:
    """Return the path that a validation error names, without list indices."""
    found = _PATH.search(text)
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
        hints: fields that are read, and reported like unknown fields.
        takes_added: whether such bodies may have fields that plugins add.
        about: what the body has that fields can change.
        inner: the prefix of the object with the fields that other bodies have at the top, with a
            dot; or empty.

    Attributes:
        shape: the struct.
        fields: fields of the struct itself.
        refused: those of them that are refused.
        hints, takes_added, about, inner: as above.
        known: the field table, as it applies here.
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
        declared = self.fields - self.refused
        if inner:
            holder = next(f for f in msgspec.structs.fields(shape) if f"{f.name}." == inner)
            declared |= _fields_of(holder.type)
        self.known = KnownFields(declared, about, inner)

    def of(self, shape: type[D]) -> "BodyReader[D]":
        """Return a reader of another shape, which refuses fields of the same names."""
        return BodyReader(
            shape,
            self._refused_names,
            about=self.about,
            inner=self.inner,
        )

    def added(self, body: bytes, names: Collection[str]) -> dict[str, Any]:
        """Return the fields of plugins in a body that was read, except nulls.

        Raises:
            RequestError: one has invalid JSON that was skipped before.
            OutOfMemory: the machine has no memory for it now.
        """
        if not names or not self.takes_added:
            return {}
        with self._refusing(body):
            found = msgspec.json.decode(body, type=_with(frozenset(names)))
        values = {name: getattr(found, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def read(self, body: bytes, added: Collection[str] = ()) -> tuple[B, frozenset[str]]:
        """Decode and check a body; return it with the names of ignored fields.

        Args:
            body: the JSON text.
            added: fields that plugins add, which are not ignored here.

        Raises:
            RequestError: names the first invalid field, and never shows its value.
            OutOfMemory: the machine has no memory for it now.
        """
        check_structure(body)
        with self._refusing(body):
            decoded, body = self._decode(body)
            known = added if self.takes_added else ()
            unused = [key for key in unused_keys(decoded, body) if key.path not in known]
            ignored = self._of_table(decoded, unused, body) if unused else frozenset[str]()
            hints = {name: getattr(decoded, name) for name in self.hints}
            idle = [n for n, v in hints.items() if v is not None and not TABLE[n].is_neutral(v)]
            return decoded, ignored | shown_names(idle) if idle else ignored

    def _of_table(self, decoded: B, unused: Sequence[UnusedKey], body: bytes) -> frozenset[str]:
        """Handle keys that the struct does not declare; return those that are ignored."""
        aliases = self.known.aliases
        ignored = self.known.ignored(key for key in unused if key.path not in aliases)
        self._set_aliases(decoded, [key for key in unused if key.path in aliases], body)
        return ignored

    def _decode(self, body: bytes) -> tuple[B, bytes]:
        """Decode a body; return it, and its text without neutral values that its types refuse."""
        for _ in range(_MAX_NEUTRAL):
            try:
                return self._decoder.decode(body), body
            except msgspec.ValidationError as error:
                name = _path(str(error))
                if name not in self._optional:
                    raise
                if (shorter := without_neutral(body, self.refused | {name})) is None:
                    raise
                body = shorter
        return self._decoder.decode(body), body

    def _set_aliases(self, decoded: B, keys: Collection[UnusedKey], body: bytes) -> None:
        """Set fields to the values of their aliases."""
        targets = {
            key.path: self.known.aliases[key.path]
            for key in keys
            if not self._is_redundant(key, getattr(decoded, self.known.aliases[key.path]))
        }
        if not targets:
            return
        aliased = msgspec.json.decode(
            body, type=_of_targets(self.shape, frozenset(targets.items()))
        )
        for alias, target in sorted(targets.items()):
            value, before = getattr(aliased, alias), getattr(decoded, target)
            if _is_given(before) and not _is_same(before, value):
                raise RequestError(f"{alias} and {target} differ; send one of them", param=alias)
            setattr(decoded, target, value)

    def _is_redundant(self, key: UnusedKey, before: Any) -> bool:
        """Tell whether an alias is neutral, and its field is set or cannot have that value."""
        value = key.value()
        if value is None or not TABLE[key.path].is_neutral(value):
            return value is None
        if _is_given(before):
            return True
        try:
            msgspec.convert(value, _types(self.shape)[self.known.aliases[key.path]])
        except msgspec.ValidationError:
            return True
        return False

    @contextmanager
    def _refusing(self, body: bytes) -> Iterator[None]:
        """Convert decoding errors into refusals."""
        try:
            yield
        except MemoryError as error:
            raise OutOfMemory("this body") from error
        except msgspec.ValidationError as error:
            raise self._refusal(str(error), body) from None
        except (ValueError, RecursionError):  # DecodeError and UnicodeDecodeError are ValueErrors
            raise RequestError("the body is not valid JSON", code="invalid_json") from None

    def _refusal(self, text: str, body: bytes) -> RequestError:
        """Return the refusal for a validation error, without the values in its text."""
        found = _PATH.search(text)
        path = _path(text)
        if path.rpartition(".")[2] in self._refused_names:
            received = _RECEIVED.search(text)
            kind = _KINDS.get(received.group(1), "a number") if received else "a value"
            return rejection(path, self.known.row(path), kind)
        if text.startswith("Invalid enum value"):
            message = f"{path} is not supported with this value by this server"
            message += self._expected(found, body)
            return RequestError(message, param=path, code="unsupported_parameter")
        if text.startswith("Invalid value"):
            message = f"{path} has a value that this server does not support"
            message += self._expected(found, body)
            return RequestError(message, param=path, code="unsupported_value")
        wrong = text[: found.start()] if found else text
        return RequestError(f"{path or 'the body'}: {wrong}", param=path or None)

    def _expected(self, found: re.Match[str] | None, body: bytes) -> str:
        """Return the supported values of a field, as the end of a sentence."""
        values = known_values(self.shape, found.group(1), body) if found else ()
        return f"; supported are {', '.join(values)}" if values else ""
