"""Which requests may share cache blocks, features and compiled constraints."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from vlmkit.interfaces.request_field import RequestField
from vlmkit.running.prompting.request_fields import checked_fields
from vlmkit.types.request import Request


class CacheScopes:
    """Computes the cache scope of each request; only requests of one scope share.

    Args:
        encoder_identity: what tells the features of one media encoder from those of another.
        request_fields: the fields that plugins added to requests.
    """

    def __init__(
        self, encoder_identity: str = "", request_fields: Iterable[RequestField[Any]] = ()
    ) -> None:
        self._encoder_identity = encoder_identity
        self._fields = {field.name: field for field in request_fields}

    def checked_fields(self, request: Request) -> dict[str, msgspec.Struct]:
        """Return the values of a request's added fields, checked.

        Raises:
            RequestError: one is unknown, or its value is not what it takes.
        """
        return checked_fields(request.fields, self._fields) if request.fields else {}

    def of(self, request: Request, fields: Mapping[str, msgspec.Struct]) -> bytes:
        """Return a digest of the tenant, its salt, the encoder and what changes hidden states."""
        names = (request.tenant, self._encoder_identity, request.cache_salt)
        parts = [name.encode(errors="surrogatepass") for name in names]
        for name in sorted(fields):
            if self._fields[name].changes == "states":
                parts += [name.encode(), msgspec.json.encode(fields[name], order="deterministic")]
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()
