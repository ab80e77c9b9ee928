"""Parsing of model references that are URIs, such as ``store://team/tiny``.

Such a reference may contain a password, or a query that grants access. Messages and logs must show
it through :func:`shown`. This module does not know the model sources.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from vlmkit.errors import CheckpointError

MAX_CHARS = 2048
SCHEME = re.compile(r"[a-z][a-z0-9+.-]+")  # at least two letters: one is a drive of Windows
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_ALLOWED = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
_ENDS_LOCATION = re.compile(r"[?#]")


@dataclass(frozen=True, slots=True)
class ModelUri:
    """A model reference that is a URI.

    Attributes:
        scheme: the scheme in lower case.
        name: the last part of the path, or the authority if there is no path; unescaped.
    """

    scheme: str
    name: str


def scheme_of(reference: str) -> str | None:
    """Return the scheme of a reference in lower case; None if it is not a URI."""
    found = _URI.match(reference)
    return found[1].lower() if found else None


def model_uri(reference: str) -> ModelUri | None:
    """Parse a reference; return None if it is not a URI.

    Raises:
        CheckpointError: the URI is invalid by RFC 3986 or too long, or its decoded path is unsafe.
            A path is unsafe if a part of it is ``.`` or ``..``, or holds a separator or an
            unprintable character.
    """
    found = _URI.match(reference)
    if found is None:
        return None
    if len(reference) > MAX_CHARS:
        raise _refusal(reference, f"it has over {MAX_CHARS} characters")
    if not _ALLOWED.fullmatch(found[2]):
        raise _refusal(reference, "it has a character that must be escaped, as in %20")
    authority, *path = _ENDS_LOCATION.split(found[2], maxsplit=1)[0].split("/")
    parts = [_decoded(part, reference) for part in (authority.rpartition("@")[2], *path)]
    named = [part for part in parts if part]
    if not named:
        raise _refusal(reference, "it names nothing")
    return ModelUri(found[1].lower(), named[-1])


def shown(reference: str) -> str:
    """Return a reference for display: a URI without user, password, query and fragment."""
    found = _URI.match(reference)
    if found is None:
        return reference
    authority, slash, path = _ENDS_LOCATION.split(found[2], maxsplit=1)[0].partition("/")
    user, at, host = authority.rpartition("@")
    return f"{found[1].lower()}://{'***' if user else ''}{at}{host}{slash}{path}"


def without_secrets(text: str, reference: str) -> str:
    """Return a text with the secret parts of a reference replaced by ``***``."""
    found = _URI.match(reference)
    if found is None:
        return text
    location, *rest = _ENDS_LOCATION.split(found[2], maxsplit=1)
    user = location.partition("/")[0].rpartition("@")[0]
    secrets = {part for part in (user, user.partition(":")[2], *rest) if part}
    text = text.replace(reference, shown(reference))
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _decoded(part: str, reference: str) -> str:
    try:
        text = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise _refusal(reference, "a part of it is no UTF-8") from None
    if text in (".", "..") or not text.isprintable() or "/" in text or "\\" in text:
        raise _refusal(reference, "a part of its path is '.' or '..', or holds what no name may")
    return text


def _refusal(reference: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"the reference of a model that begins with '{scheme_of(reference)}://' cannot be used: "
        f"{problem}"
    )
