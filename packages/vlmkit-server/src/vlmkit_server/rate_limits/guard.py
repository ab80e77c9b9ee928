"""What every route asks once it is known who asks: is another request within the limits."""

from typing import Any

from litestar.connection import ASGIConnection
from litestar.enums import HttpMethod
from litestar.handlers import BaseRouteHandler

from vlmkit_server.auth.key import Key
from vlmkit_server.http.caller import network_of
from vlmkit_server.http.operation import Operation
from vlmkit_server.rate_limits.cost import ONE_REQUEST
from vlmkit_server.rate_limits.tenant_usage import TenantUsage
from vlmkit_server.rate_limits.tenants import TenantUsages

ACCOUNT = "limits_account"
"""Where a request's state has the account that it is charged to, if any."""


class RateLimitGuard:
    """Counts requests, but for those that any key may make, such as one that asks for readiness.

    Args:
        accounts: of all who ask.
    """

    def __init__(self, accounts: TenantUsages) -> None:
        self._accounts = accounts

    def __call__(
        self, asked: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        """Note whose limits a request is held to, and count it.

        Raises:
            RateLimited: it is one too many.
        """
        operation: Operation | None = handler.opt.get("operation")
        access = "chat" if operation is None else operation.access
        if access == "open" or asked.scope.get("method") == HttpMethod.OPTIONS:
            return
        account = self._account(asked)
        if account is not None:
            asked.scope["state"][ACCOUNT] = account
            if access != "key":
                account.use(ONE_REQUEST)

    def _account(self, asked: ASGIConnection[Any, Any, Any, Any]) -> TenantUsage | None:
        key: Key | None = asked.scope["state"].get("key")
        if key is not None:
            return self._accounts.of_key(key)
        client = asked.scope.get("client")
        return self._accounts.of_address(network_of(client[0]) if client else "")
