"""Which requests may share cache blocks, features and compiled constraints."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from vlmkit.interfaces.request_field import RequestField
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames, Fault, attributing
from vlmkit.running.prompting.request_fields import checked_fields
from vlmkit.types.request import Request

OWNER = "engine"
"""The kind of component that adds fields which change states, and so have identities."""


class FieldValues(NamedTuple):
    """The fields that plugins added to a request.

    Attributes:
        values: the checked values, by name.
        identities: the identities of those values whose fields have one, by name.
    """

    values: Mapping[str, msgspec.Struct]
    identities: Mapping[str, bytes]


class CacheScopes:
    """Computes the cache scope of each request; only requests of one scope share.

    Args:
        encoder_identity: what tells the features of one media encoder from those of another.
        request_fields: the fields that plugins added to requests.
        component_names: the names of the components in errors.
    """

    def __init__(
        self,
        encoder_identity: str = "",
        request_fields: Iterable[RequestField[Any]] = (),
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._encoder_identity = encoder_identity
        self._fields = {field.name: field for field in request_fields}
        self._component_names = component_names

    def read_fields(self, request: Request) -> FieldValues:
        """Return the values of a request's added fields, checked, and their identities.

        Raises:
            RequestError: one is unknown, or its value is not what it takes.
            EngineError: the identity of a value could not be computed.
        """
        if not request.fields:
            return FieldValues({}, {})
        values = checked_fields(request.fields, self._fields)
        identities = {
            name: self._identity(self._fields[name], value)
            for name, value in values.items()
            if self._fields[name].identity is not None
        }
        return FieldValues(values, identities)

    def of(self, request: Request, fields: FieldValues) -> bytes:
        """Return a digest of the tenant, its salt, the encoder and what changes hidden states."""
        names = (request.tenant, self._encoder_identity, request.cache_salt)
        parts = [name.encode(errors="surrogatepass") for name in names]
        for name in sorted(fields.values):
            if self._fields[name].changes == "states":
                content = fields.identities.get(name)
                if content is None:
                    content = msgspec.json.encode(fields.values[name], order="deterministic")
                parts += [name.encode(), content]
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()

    def _identity(self, field: RequestField[Any], value: msgspec.Struct) -> bytes:
        """Return the identity of a value.

        Raises:
            RequestError: the value names nothing.
            EngineError: the identity function failed; the error names its plugin and the field.
        """
        if field.identity is None:
            return b""
        with attributing(self._component_names, OWNER, f"the field {field.name!r}"):
            identity: object = field.identity(value)
        if not isinstance(identity, bytes) or not identity:
            problem = f"returned no bytes as the identity of the field {field.name!r}"
            raise Fault(OWNER, problem).attributed_to(self._component_names)
        return identity
