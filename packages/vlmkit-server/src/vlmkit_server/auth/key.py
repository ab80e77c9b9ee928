"""One API key: whose it is and what it may do. Its secret is kept nowhere, only a digest of it.

A secret has 256 random bits, so that a plain digest can be neither guessed nor turned back; a slow
one, as passwords need, would only let strangers keep the server busy.
"""

import hashlib
import secrets
import time
from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.scope import Scope
from vlmkit_server.http.operation import Access
from vlmkit_server.settings.limits import LimitTexts, limits_of

Name = Annotated[str, Meta(pattern=r"^[\w.@:+-]{1,64}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]

MARK = "vlmkit-"  # so that people and programs know what they found


class Key(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="key",
):
    """One key.

    Attributes:
        id: what it is called in logs and commands.
        name: what its operator calls it.
        tenant: whose it is: keys of one tenant share what is stored and cached, and nobody else.
        digest: SHA-256 of the secret, in hexadecimal digits.
        scopes: what it may do.
        created_s: when it was made, in seconds since 1970.
        expires_s: when it ends; never when None.
        limits: how much it may ask for in a time; besides, what the server's settings say holds.
    """

    id: Name
    name: Name
    tenant: Name
    digest: Digest
    scopes: tuple[Scope, ...]
    created_s: int
    expires_s: int | None = None
    limits: LimitTexts = ()

    def __post_init__(self) -> None:
        limits_of(self.limits)

    def may(self, access: Access) -> bool:
        """Tell whether it may ask what a route wants."""
        if access == "metrics" and "admin" in self.scopes:
            return True
        return access in ("open", "key") or access in self.scopes

    def is_over(self, now_s: float) -> bool:
        """Tell whether its time has ended."""
        return self.expires_s is not None and now_s >= self.expires_s


def new_key(
    name: str,
    scopes: tuple[Scope, ...],
    *,
    tenant: str | None = None,
    lives_s: int | None = None,
    limits: tuple[str, ...] = (),
) -> tuple[Key, str]:
    """Return a new key and its secret, which can be had this once.

    Args:
        name: what its operator calls it.
        scopes: what it may do.
        tenant: whose it is; one of its own when None.
        lives_s: seconds until it ends; for ever when None.
        limits: how much it may ask for in a time.
    """
    secret, key_id, now_s = (
        MARK + secrets.token_urlsafe(32),
        secrets.token_hex(6),
        time.time(),
    )
    key = Key(
        id=key_id,
        name=name,
        tenant=tenant or key_id,
        digest=digest_of(secret),
        scopes=scopes,
        created_s=int(now_s),
        expires_s=None if lives_s is None else int(now_s) + lives_s,
        limits=limits,
    )
    return key, secret


def digest_of(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
