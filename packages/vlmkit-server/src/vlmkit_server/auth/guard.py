"""What every route asks before it does anything: is there a key, and may it do this.

A route says what it wants in its :class:`~vlmkit_server.http.operation.Operation`; one that says
nothing wants a key for answers.
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
from vlmkit_server.http.errors import KeyMissing, KeyRefused, MayNot
from vlmkit_server.http.operation import Operation

log = logging.getLogger(__name__)

Asked = ASGIConnection[Any, Any, Any, Any]


class Guard:
    """Lets those in who have a key.

    Args:
        keys: those that are taken.
    """

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def __call__(self, asked: Asked, handler: BaseRouteHandler) -> None:
        """Note whose request it is; which methods a path has may be asked by anybody.

        Raises:
            KeyMissing: there is no key.
            KeyRefused: it is not one of those that are taken, or there are two.
            MayNot: it may not do this.
        """
        operation: Operation | None = handler.opt.get("operation")
        access = "chat" if operation is None else operation.access
        if access == "open" or asked.scope.get("method") == HttpMethod.OPTIONS:
            return
        inside = internal_caller(asked.scope)
        if inside is None:
            key = self._key(credentials_of(Request(asked.scope)))
        else:
            key = self._by_id(inside)
        asked.scope["state"]["tenant"] = key.tenant
        asked.scope["state"]["is_operator"] = key.may("admin")
        asked.scope["state"]["key"] = key
        if not key.may(access):
            log.warning("key %s (%s) may not do what needs scope %s", key.id, key.name, access)
            raise MayNot(f"this API key may not do this: it needs the scope {access!r}")

    def _by_id(self, caller: Caller) -> Key:
        """Return the key by which the server was asked to make a request, if it is still taken."""
        key = self._keys.by_id(caller.key_id)
        if key is None or key.tenant != caller.tenant:
            raise KeyRefused("the API key by which this was asked for is not taken any more")
        return key

    def _key(self, given: set[str]) -> Key:
        """Return the key that was sent; beside it may be what some proxy asks for."""
        if not given:
            raise KeyMissing("an API key must be sent", hint="authorization: Bearer KEY")
        keys = {key for key in map(self._keys.find, given) if key is not None}
        if len(keys) != 1:  # of two that are taken, whose request would it be?
            raise KeyRefused("this API key is unknown, revoked or expired")
        return keys.pop()
