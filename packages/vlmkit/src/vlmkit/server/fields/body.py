"""How the JSON of a body becomes a struct, or a refusal that names the field and shows no value."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from vlmkit.errors import OutOfMemory, RequestError
from vlmkit.server.fields.ignored import HINTS, ignored_names
from vlmkit.server.fields.known_values import known_values
from vlmkit.server.fields.structure import check_structure
from vlmkit.server.fields.unused import unused_keys

B = TypeVar("B", bound=msgspec.Struct)
D = TypeVar("D", bound=msgspec.Struct)
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")


@cache
def _with(names: frozenset[str]) -> type[msgspec.Struct]:
    """Return a struct with optional fields of any value."""
    return msgspec.defstruct("Added", [(name, Any, None) for name in sorted(names)])


class BodyReader(Generic[B]):
    """Reads bodies of one shape.

    Args:
        shape: a struct.
        refused: fields, by their last name, that are refused whatever they hold.
        hints: fields that are read, and ignored as keys without a field are.
        takes_added: whether such bodies may hold fields that plugins added to requests.

    Attributes:
        shape: the struct.
        fields: of the struct itself.
        refused: those of them that are refused.
        takes_added: as above.
    """

    def __init__(
        self,
        shape: type[B],
        refused: Collection[str] = (),
        hints: Collection[str] = (),
        *,
        takes_added: bool = False,
    ) -> None:
        self._decoder = msgspec.json.Decoder(shape)
        self.shape = shape
        self.fields = frozenset(shape.__struct_fields__)
        self.refused = frozenset(refused) & self.fields
        self._refused_names = frozenset(refused)
        self._hints = tuple(hints)
        self.takes_added = takes_added

    def of(self, shape: type[D]) -> "BodyReader[D]":
        """Return a reader of another shape, which refuses fields of the same names."""
        return BodyReader(shape, self._refused_names)

    def added(self, body: bytes, names: Collection[str]) -> dict[str, Any]:
        """Return what a body that was read says by fields that plugins added, but for nulls.

        Raises:
            RequestError: one holds what was read past before, and is no text or number.
            OutOfMemory: this machine has no room for it now.
        """
        if not names or not self.takes_added:
            return {}
        with self._refusing():
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
        with self._refusing():
            made = self._decoder.decode(body)
            idle = {name for name in self._hints if getattr(made, name) not in HINTS[name]}
            known = added if self.takes_added else ()
            unused = (key for key in unused_keys(made, body) if key.place not in known)
            return made, ignored_names(unused) | idle

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Make refusals of what decoding raises."""
        try:
            yield
        except MemoryError as error:
            raise OutOfMemory("this body") from error
        except msgspec.ValidationError as error:
            raise self._refusal(str(error)) from None
        except (ValueError, RecursionError):  # DecodeError and UnicodeDecodeError are ValueErrors
            raise RequestError("the body is not valid JSON", code="invalid_json") from None

    def _refusal(self, text: str) -> RequestError:
        """Say what a validation error means, without the values that its text may quote."""
        found = _PLACE.search(text)
        place = found.group(1).replace("[...]", "") if found else ""
        if place.rpartition(".")[2] in self._refused_names:
            message = f"{place} is not supported by this server"
            return RequestError(message, param=place, code="unsupported_parameter")
        if text.startswith("Invalid enum value"):
            message = f"{place} is not supported with this value by this server"
            message += self._expected(found)
            return RequestError(message, param=place, code="unsupported_parameter")
        if text.startswith("Invalid value"):
            message = f"{place} has a value that this server does not support"
            message += self._expected(found)
            return RequestError(message, param=place, code="unsupported_value")
        wrong = text[: found.start()] if found else text
        return RequestError(f"{place or 'the body'}: {wrong}", param=place or None)

    def _expected(self, found: re.Match[str] | None) -> str:
        """Return which values are taken in a place, as the end of a sentence."""
        values = known_values(self.shape, found.group(1)) if found else ()
        return f"; supported are {', '.join(values)}" if values else ""
