"""One API key for all clients, from a file or a setting. Only its digest stays in memory."""

from pathlib import Path

import msgspec

from vlmkit.errors import ConfigError
from vlmkit_server.auth.key import Key, digest_of
from vlmkit_server.settings.server import ApiKey

MAX_BYTES = 1024
ID = "api-key"
"""Its id in logs and its tenant; they survive a restart and a change of the secret."""


def single_key(secret: str) -> Key:
    """Return the key of a secret, with the scopes ``chat`` and ``embed``."""
    return Key(
        id=ID, name=ID, tenant=ID, digest=digest_of(secret), scopes=("chat", "embed"), created_s=0
    )


def read_single_key(path: Path) -> Key:
    """Return the key in a file.

    Raises:
        ConfigError: the file cannot be read, or contains anything else.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"server.api_key_file {str(path)!r} cannot be read: {error.strerror}",
            hint="name a file that the server's user can read",
        ) from error
    try:
        return single_key(msgspec.convert(content.decode("ascii").strip(), ApiKey))
    except ValueError:  # the content is not quoted: it may be a secret
        raise ConfigError(
            f"server.api_key_file {str(path)!r} must hold one key and nothing else: 16 to 512 "
            "characters of ASCII without spaces",
            hint=f"make one by: openssl rand -hex 32 > {path}",
        ) from None
