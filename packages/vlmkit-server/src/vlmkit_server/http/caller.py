"""Identifies the caller of a request: whose stored objects, caches, quotas and fair share it uses.

It does not authenticate. A request without a known key gets here only if the server has no keys.
"""

import hashlib
import ipaddress
import re
from typing import Any, NamedTuple

from litestar import Request
from litestar.types import Scope

IPV6_NETWORK = len("0000:0000:0000:0000")
_INTERNAL = "caller"  # a key of the request's state, which clients cannot set
_SCHEME = re.compile(r"^bearer\s+", re.IGNORECASE)


class Caller(NamedTuple):
    """The caller of a request.

    Attributes:
        owner: identifies the owner of files and responses: callers with the same credentials
            share it.
        tenant: the tenant of the API key, whose caches are used; empty where the server has no
            keys, so that all share the caches.
        account: the identity that quotas and the fair queue count: the tenant, or the client's
            network where the server has no keys.
        is_operator: whether it sees totals over all callers: with the scope ``admin``, or where the
            server has no keys.
        key_id: the id of the API key, where the server has keys.
        priority: the scheduling priority of its requests: larger values run later.
        trace: the trace that the request belongs to, if a monitor traces it.
    """

    owner: bytes
    tenant: str
    account: str = ""
    is_operator: bool = True
    key_id: str = ""
    priority: int = 0
    trace: str = ""


ANONYMOUS = Caller(b"", "")


def internal_caller(scope: Scope) -> Caller | None:
    """Return the caller of a request that the server itself makes; None for a client's."""
    caller: Caller | None = scope["state"].get(_INTERNAL)
    return caller


def internal_state(caller: Caller) -> dict[str, Any]:
    """Return the state of a request that the server makes on behalf of a caller."""
    return {_INTERNAL: caller}


def caller_of(request: Request[Any, Any, Any]) -> Caller:
    """Return the caller of a request."""
    if (caller := internal_caller(request.scope)) is not None:
        return caller
    state = request.scope["state"]
    trace = state.get("trace", "")
    if tenant := state.get("tenant", ""):
        owner = hashlib.sha256(b"tenant\0" + tenant.encode()).digest()
        key_id = state["key"].id if "key" in state else ""
        return Caller(owner, tenant, tenant, bool(state.get("is_operator")), key_id, trace=trace)
    given = "\0".join(sorted(credentials_of(request)))
    owner = hashlib.sha256(given.encode()).digest()
    return Caller(owner, "", tenant_or_network(request.scope), trace=trace)


def tenant_or_network(scope: Scope) -> str:
    """Return a request's tenant or client network, without reading credentials."""
    if (caller := internal_caller(scope)) is not None:
        return caller.account
    tenant: str = scope["state"].get("tenant", "")
    client = scope["client"]
    return tenant or (network_of(client[0]) if client else "")


def network_of(host: str) -> str:
    """Return the network that an address counts for: an IPv6 address's /64, or itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a test client, or a named socket
        return host
    if address.version == 4:
        return host
    return address.ipv4_mapped.exploded if address.ipv4_mapped else address.exploded[:IPV6_NETWORK]


def credentials_of(request: Request[Any, Any, Any]) -> set[str]:
    """Return the credentials in a request's headers, of every API's kind."""
    bearers = (_SCHEME.sub("", each) for each in request.headers.getall("authorization", []))
    given = (*bearers, *request.headers.getall("x-api-key", []))
    return {each.strip() for each in given} - {""}
