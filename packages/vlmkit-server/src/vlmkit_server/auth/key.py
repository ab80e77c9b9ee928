"""An API key: its tenant and its permissions. Only a digest of the secret is stored.

A secret has 256 random bits, so a fast digest can be neither guessed nor inverted. A slow one, as
for passwords, would only let clients keep the server busy.
"""

import hashlib
import secrets
import time
from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.scope import Scope
from vlmkit_server.interfaces.api import Access
from vlmkit_server.settings.limits import LimitTexts, limits_of

Name = Annotated[str, Meta(pattern=r"^[\w.@:+-]{1,64}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]

PREFIX = "vlmkit-"  # lets people and secret scanners recognize a key


class Key(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="key",
):
    """One API key.

    Attributes:
        id: identifies it in logs and commands.
        name: the operator's name for it.
        tenant: its tenant: keys of one tenant share stored objects and caches.
        digest: SHA-256 of the secret, in hexadecimal digits.
        scopes: its permissions.
        created_s: when it was created, in seconds since 1970.
        expires_s: when it expires; never when None.
        limits: its rate limits; they override the server's for the same unit and period.
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
        """Tell whether it has the permission that a route needs."""
        if access == "metrics" and "admin" in self.scopes:
            return True
        return access in ("open", "key") or access in self.scopes

    def is_over(self, now_s: float) -> bool:
        """Tell whether it has expired."""
        return self.expires_s is not None and now_s >= self.expires_s


def new_key(
    name: str,
    scopes: tuple[Scope, ...],
    *,
    tenant: str | None = None,
    lives_s: int | None = None,
    limits: tuple[str, ...] = (),
) -> tuple[Key, str]:
    """Return a new key and its secret, which is not stored.

    Args:
        name: the operator's name for it.
        scopes: its permissions.
        tenant: its tenant; a new one when None.
        lives_s: seconds until it expires; never when None.
        limits: its rate limits.
    """
    secret, key_id, now_s = (
        PREFIX + secrets.token_urlsafe(32),
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
    """Return the digest that is stored of a secret."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
