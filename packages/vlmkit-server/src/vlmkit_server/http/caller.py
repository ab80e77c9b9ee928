"""Who asks: of whom is what is stored and cached for a request.

Nothing is checked here: a request without a key that the server knows has come as far as this only
where the server asks for none.
"""

import hashlib
import ipaddress
import re
from typing import Any, NamedTuple

from litestar import Request
from litestar.types import Scope

IPV6_NETWORK = len("0000:0000:0000:0000")
_INSIDE = "caller"  # in the state of a request, which nothing that is sent can set
_SCHEME = re.compile(r"^bearer\s+", re.IGNORECASE)


class Caller(NamedTuple):
    """Who asks.

    Attributes:
        owner: whose files and responses are found; who has the same credentials is the same.
        tenant: whose caches are used: that of the key, or everybody's where there are no keys.
        account: on whose account is what the request takes: the tenant's, or that of the network
            that it came from where there are no keys.
        is_operator: whether totals of all are shown: by a key with the scope ``admin``, or to
            everybody where there are no keys.
        key_id: what the key is called that was sent, where keys are asked for.
        priority: what its requests wait for besides what they ask for: larger runs later.
        trace: what is done for the request belongs to, if anybody traces it.
    """

    owner: bytes
    tenant: str
    account: str = ""
    is_operator: bool = True
    key_id: str = ""
    priority: int = 0
    trace: str = ""


NOBODY = Caller(b"", "")


def speaks_for(scope: Scope) -> Caller | None:
    """Return who asked for a request of the server's own making; None where a client made it."""
    caller: Caller | None = scope["state"].get(_INSIDE)
    return caller


def made_for(caller: Caller) -> dict[str, Any]:
    """Return the state of a request that the server makes itself, since somebody asked before."""
    return {_INSIDE: caller}


def caller_of(request: Request[Any, Any, Any]) -> Caller:
    """Return who sent a request."""
    if (caller := speaks_for(request.scope)) is not None:
        return caller
    state = request.scope["state"]
    trace = state.get("trace", "")
    if tenant := state.get("tenant", ""):
        owner = hashlib.sha256(b"tenant\0" + tenant.encode()).digest()
        key_id = state["key"].id if "key" in state else ""
        return Caller(owner, tenant, tenant, bool(state.get("is_operator")), key_id, trace=trace)
    given = "\0".join(sorted(secrets_in(request)))
    owner = hashlib.sha256(given.encode()).digest()
    return Caller(owner, "", account_of(request.scope), trace=trace)


def account_of(scope: Scope) -> str:
    """Return the account of a request: that of its caller, without looking at credentials."""
    if (caller := speaks_for(scope)) is not None:
        return caller.account
    tenant: str = scope["state"].get("tenant", "")
    client = scope["client"]
    return tenant or (network_of(client[0]) if client else "")


def network_of(host: str) -> str:
    """Return whose an address is: one who has an address of IPv6 has a network of them."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # of a test's client, or a socket with a name
        return host
    if address.version == 4:
        return host
    return address.ipv4_mapped.exploded if address.ipv4_mapped else address.exploded[:IPV6_NETWORK]


def secrets_in(request: Request[Any, Any, Any]) -> set[str]:
    """Return the credentials of a request, in whichever API's headers they are."""
    bearers = (_SCHEME.sub("", each) for each in request.headers.getall("authorization", []))
    given = (*bearers, *request.headers.getall("x-api-key", []))
    return {each.strip() for each in given} - {""}
