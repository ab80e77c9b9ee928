"""Authenticates every request and checks the API key's permissions, before the route runs.

A route states the access that it needs in its :class:`~vlmkit_server.http.operation.Operation`. The
default is the scope ``chat``.
"""

import logging
from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.enums import HttpMethod
from litestar.handlers import BaseRouteHandler

from vlmkit_server.auth.key import Key
from vlmkit_server.auth.key_ring import KeyRing
from vlmkit_server.http.caller import Caller, credentials_of, internal_caller
from vlmkit_server.http.errors import KeyMissing, KeyRefused, ScopeMissing
from vlmkit_server.http.operation import Operation

log = logging.getLogger(__name__)

Connection = ASGIConnection[Any, Any, Any, Any]


class Guard:
    """Admits requests with a valid key.

    Args:
        keys: the valid keys.
    """

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def __call__(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Find the key of a request and check its permission; OPTIONS needs no key.

        Raises:
            KeyMissing: there is no key.
            KeyRefused: the key is not valid, or there are two.
            ScopeMissing: the key lacks the permission.
        """
        operation: Operation | None = handler.opt.get("operation")
        access = "chat" if operation is None else operation.access
        if access == "open" or connection.scope.get("method") == HttpMethod.OPTIONS:
            return
        caller = internal_caller(connection.scope)
        if caller is None:
            key = self._key(credentials_of(Request(connection.scope)))
        else:
            key = self._by_id(caller)
        connection.scope["state"]["tenant"] = key.tenant
        connection.scope["state"]["is_operator"] = key.may("admin")
        connection.scope["state"]["key"] = key
        if not key.may(access):
            log.warning("permission denied: key %s (%s) lacks scope %s", key.id, key.name, access)
            raise ScopeMissing(f"this API key may not do this: it needs the scope {access!r}")

    def _by_id(self, caller: Caller) -> Key:
        """Return the key on whose behalf the server makes a request, if it is still valid."""
        key = self._keys.by_id(caller.key_id)
        if key is None or key.tenant != caller.tenant:
            raise KeyRefused("the API key of this request is no longer valid")
        return key

    def _key(self, given: set[str]) -> Key:
        """Return the key that was sent; a proxy's credentials may be beside it."""
        if not given:
            raise KeyMissing("an API key must be sent", hint="authorization: Bearer KEY")
        keys = {key for key in map(self._keys.find, given) if key is not None}
        if len(keys) != 1:  # with two valid keys, the tenant is ambiguous
            raise KeyRefused("this API key is unknown, revoked or expired")
        return keys.pop()
