"""Who asks: of whom is what is stored and cached for a request.

Nothing is checked here: a request without a key that the server knows has come as far as this only
where the server asks for none.
"""

import hashlib
import re
from typing import Any, NamedTuple

from litestar import Request

_SCHEME = re.compile(r"^bearer\s+", re.IGNORECASE)


class Caller(NamedTuple):
    """Who asks.

    Attributes:
        owner: whose files and responses are found; who has the same credentials is the same.
        tenant: whose caches are used: that of the key, or everybody's where there are no keys.
    """

    owner: bytes
    tenant: str


NOBODY = Caller(b"", "")


def caller_of(request: Request[Any, Any, Any]) -> Caller:
    """Return who sent a request."""
    tenant = request.scope["state"].get("tenant", "")
    if tenant:
        return Caller(hashlib.sha256(b"tenant\0" + tenant.encode()).digest(), tenant)
    given = "\0".join(sorted(secrets_in(request)))
    return Caller(hashlib.sha256(given.encode()).digest(), "")


def secrets_in(request: Request[Any, Any, Any]) -> set[str]:
    """Return the credentials of a request, in whichever API's headers they are."""
    bearers = (_SCHEME.sub("", each) for each in request.headers.getall("authorization", []))
    given = (*bearers, *request.headers.getall("x-api-key", []))
    return {each.strip() for each in given} - {""}
