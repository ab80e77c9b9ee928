"""Request fields that break one promise each, derived from a field that names adapters."""

import hashlib
import itertools
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from broken.broken import Broken, Table
from vlmkit.errors import RequestError
from vlmkit.interfaces.request_field import HasFields, RequestField
from vlmkit_testing import RequestFieldContract


class Adapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request field ``adapter``."""

    name: str
    scale: float = 1.0


class Adapters:
    """Identifies an adapter by its weights and its scale."""

    made: Any = RequestField
    shape: Any = Adapter
    changes: Any = "states"
    name = "adapter"

    def __init__(self) -> None:
        self.weights = {"legal": b"weights 1", "medical": b"weights 2"}

    @property
    def field(self) -> RequestField[Any]:
        """The field."""
        return self.made(self.name, self.shape, self.changes, identity=self.identity)

    def identity(self, value: Any) -> Any:
        """Return a digest of the weights and the scale."""
        if value.name not in self.weights:
            raise RequestError("there is no such adapter", param="adapter.name")
        return hashlib.sha256(self.weights[value.name] + b"%a" % value.scale).digest()


class HasANameOfRequests(Adapters):
    name = "temperature"


class IdentifiesContentThatChangesNoStates(Adapters):
    changes = "choices"


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Writes another value than it reads."""

    name: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "scale", self.scale / 2)


class HalvesItsScale(Adapters):
    shape = Measured


class ReturnsText(Adapters):
    def identity(self, value: Any) -> str:
        return super().identity(value).hex()


class ReturnsNoBytes(Adapters):
    def identity(self, value: Any) -> bytes:
        return b""


class IdentifiesTheObject(Adapters):
    values: list[Any] = []  # noqa: RUF012 - so that no address is used twice

    def identity(self, value: Any) -> bytes:
        self.values.append(value)
        return b"%d" % id(value)


class IdentifiesThisProcess(Adapters):
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.salt = b"%d" % next(self.numbers)

    def identity(self, value: Any) -> bytes:
        return self.salt + bytes(super().identity(value))


class OmitsTheScale(Adapters):
    def identity(self, value: Any) -> bytes:
        return hashlib.sha256(self.weights[value.name]).digest()


class SharesAHasher(Adapters):
    def identity(self, value: Any) -> bytes:
        self.hasher = hashlib.sha256(super().identity(value))
        time.sleep(0.001)
        return self.hasher.digest()


class FailsForUnknownNames(Adapters):
    def identity(self, value: Any) -> bytes:
        return hashlib.sha256(self.weights[value.name] + b"%a" % value.scale).digest()


class UsesUnknownNames(Adapters):
    def identity(self, value: Any) -> bytes:
        weights = self.weights.get(value.name, b"")
        return hashlib.sha256(weights + b"%a" % value.scale).digest()


class ResolvingField(RequestField[Any]):
    """Resolves the identity each time it is needed."""

    def identity_of(self, sequence: HasFields) -> bytes:
        value = self.of(sequence)
        return b"" if value is None or self.identity is None else self.identity(value)


class ResolvesItsIdentityAgain(Adapters):
    made = ResolvingField


class OnAdapters(RequestFieldContract):
    def __init__(self, kind: type[Adapters]) -> None:
        self._kind = kind

    def make(self) -> RequestField[Any]:
        return self._kind().field

    def values(self) -> list[Mapping[str, Any]]:
        return [{"name": "legal"}, {"name": "legal", "scale": 0.5}, {"name": "medical"}]

    def unknown(self) -> list[Mapping[str, Any]]:
        return [{"name": "forgotten"}]


class ReturnsOneValue(OnAdapters):
    def values(self) -> list[Mapping[str, Any]]:
        return super().values()[:1]


class ReturnsOneScale(OnAdapters):
    def values(self) -> list[Mapping[str, Any]]:
        return [value for value in super().values() if len(value) == 1]


def on_itself(contract: type[OnAdapters]) -> OnAdapters:
    """Return an incomplete contract on a correct field."""
    return contract(Adapters)


CONSTANT = "an_identity_is_constant_bytes"
TABLE = Table(
    RequestFieldContract,
    OnAdapters,
    Adapters,
    (
        Broken(
            ReturnsOneValue,
            "values() returns at least two values.",
            "there_are_values_to_check_with",
            honest=OnAdapters,
            on=on_itself,
        ),
        Broken(
            ReturnsOneScale,
            "Each member differs in two of the values.",
            "there_are_values_to_check_with",
            honest=OnAdapters,
            on=on_itself,
        ),
        Broken(
            HasANameOfRequests,
            "The name is not one of a field that request bodies have.",
            "a_component_can_add_the_field",
        ),
        Broken(
            IdentifiesContentThatChangesNoStates,
            "Only a field that changes states has an identity.",
            "a_component_can_add_the_field",
        ),
        Broken(
            HalvesItsScale,
            "A value that is written is read as the same value.",
            "values_are_read_from_json",
        ),
        Broken(ReturnsText, "An identity is bytes.", CONSTANT),
        Broken(ReturnsNoBytes, "An identity is not empty.", CONSTANT),
        Broken(IdentifiesTheObject, "Equal values have equal identities.", CONSTANT),
        Broken(
            IdentifiesThisProcess,
            "The identity of the same content is the same in another process.",
            CONSTANT,
        ),
        Broken(
            OmitsTheScale,
            "Values of different content have different identities.",
            "values_of_different_content_have_different_identities",
        ),
        Broken(
            SharesAHasher,
            "Identities are resolved in several threads at once.",
            "identities_are_resolved_in_several_threads_at_once",
        ),
        Broken(
            ResolvesItsIdentityAgain,
            "The identity of a sequence's value was resolved when the request was read.",
            "a_sequence_keeps_the_value_and_the_identity_of_its_request",
        ),
        Broken(
            FailsForUnknownNames,
            "A value that names nothing is a RequestError.",
            "a_value_that_names_nothing_is_an_error_of_the_client",
            raises=(KeyError,),
        ),
        Broken(
            UsesUnknownNames,
            "A value that names nothing is refused.",
            "a_value_that_names_nothing_is_an_error_of_the_client",
        ),
    ),
)
