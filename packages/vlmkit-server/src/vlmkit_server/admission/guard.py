"""The guard of every route that counts authenticated requests in their rate limits."""

from typing import Any

from litestar.connection import ASGIConnection
from litestar.enums import HttpMethod
from litestar.handlers import BaseRouteHandler

from vlmkit_server.admission.admission import admission_of
from vlmkit_server.auth.key import Key
from vlmkit_server.http.caller import network_of
from vlmkit_server.http.operation import Operation
from vlmkit_server.rate_limits.tenant_usage import TenantUsage
from vlmkit_server.rate_limits.tenants import TenantUsages


class RateLimitGuard:
    """Counts requests, except those that every key may make, such as readiness checks.

    Args:
        usages: the usage of all keys and addresses.
    """

    def __init__(self, usages: TenantUsages) -> None:
        self._usages = usages

    async def __call__(
        self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        """Find the usage that a request is charged to, and count the request.

        Raises:
            RateLimited: the limit of requests is reached.
        """
        operation: Operation | None = handler.opt.get("operation")
        access = "chat" if operation is None else operation.access
        if access == "open" or connection.scope.get("method") == HttpMethod.OPTIONS:
            return
        usage = self._usage_of(connection)
        admission_of(connection.scope).set_usage(usage, is_counted=access != "key")

    def _usage_of(self, connection: ASGIConnection[Any, Any, Any, Any]) -> TenantUsage | None:
        key: Key | None = connection.scope["state"].get("key")
        if key is not None:
            return self._usages.of_key(key)
        client = connection.scope.get("client")
        return self._usages.of_address(network_of(client[0]) if client else "")
