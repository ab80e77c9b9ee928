"""One key for all clients, which an operator chose: from a file, or from a setting.

Its secret stays in memory alone, as a digest.
"""

from pathlib import Path

import msgspec

from vlmkit.errors import ConfigError
from vlmkit_server.auth.key import Key, digest_of
from vlmkit_server.settings.server import ApiKey

MAX_BYTES = 1024
ID = "api-key"
"""What it is called in logs, and its tenant: the same after a restart and with another secret."""


def single_key(secret: str) -> Key:
    """Return the key of a secret; it may ask for answers and for embeddings."""
    return Key(
        id=ID, name=ID, tenant=ID, digest=digest_of(secret), scopes=("chat", "embed"), created_s=0
    )


def read_single_key(path: Path) -> Key:
    """Return the key that a file holds.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
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
    except ValueError:  # what is wrong is not repeated: it may be a secret
        raise ConfigError(
            f"server.api_key_file {str(path)!r} must hold one key and nothing else: 16 to 512 "
            "characters of ASCII without spaces",
            hint=f"make one by: openssl rand -hex 32 > {path}",
        ) from None
