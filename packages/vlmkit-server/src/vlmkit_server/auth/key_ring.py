"""The valid API keys, looked up by secret in constant time."""

import hmac
import logging
import time
from collections.abc import Callable, Sequence as Seq
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from vlmkit.errors import ConfigError
from vlmkit.settings.bounds import Secret
from vlmkit_server.auth.key import Key, digest_of
from vlmkit_server.auth.key_file import read_lines, valid_keys
from vlmkit_server.settings.server import ServerSettings

log = logging.getLogger(__name__)

MAX_BYTES = 1024  # of a file with one key
SINGLE_KEY_ID = "api-key"
"""The id of a single key, and its tenant; it survives restarts and changes of the secret."""


class Reloaded(NamedTuple):
    """The changes of a reload.

    Attributes:
        added: ids of keys that are valid now.
        revoked: ids of keys that are no longer valid.
    """

    added: list[str]
    revoked: list[str]


def key_ring(settings: ServerSettings) -> "KeyRing | None":
    """Return the keys that the settings configure; None where clients need none.

    Raises:
        ConfigError: the keys cannot be read, or come from more than one setting.
    """
    given = {
        "server.keys_file": (settings.keys_file, _of_file),
        "server.api_key": (settings.api_key, _single),
        "server.api_key_file": (settings.api_key_file, _of_secret_file),
    }
    named = [name for name, (value, _) in given.items() if value]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} are set", hint="keep one of them")
    return next((KeyRing(partial(read, value)) for value, read in given.values() if value), None)


def _of_file(path: str) -> Seq[Key]:
    return valid_keys(read_lines(Path(path)))


def _single(secret: str) -> Seq[Key]:
    return [single_key(secret)]


def _of_secret_file(path: str) -> Seq[Key]:
    return [read_single_key(Path(path))]


class KeyRing:
    """The valid keys.

    Args:
        read: returns the current keys; may raise ConfigError.

    Raises:
        ConfigError: the keys cannot be read.
    """

    def __init__(self, read: Callable[[], Seq[Key]]) -> None:
        self._read = read
        self._keys = read()

    def find(self, secret: str) -> Key | None:
        """Return the key of a secret, if there is one that has not expired; compares every key."""
        digest, found = digest_of(secret), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return None if found is None or found.is_over(time.time()) else found

    def by_id(self, key_id: str) -> Key | None:
        """Return the key with an id, if there is one that has not expired."""
        found = next((key for key in self._keys if key.id == key_id), None)
        return None if found is None or found.is_over(time.time()) else found

    def reload(self) -> "Reloaded | None":
        """Read the keys again; keep the previous ones if they cannot be read.

        Returns:
            The changes; None if the keys cannot be read.
        """
        before = {key.id for key in self._keys}
        try:
            self._keys = self._read()
        except ConfigError as error:
            log.error("reload failed, keeping the previous API keys: %s", error)  # noqa: TRY400 - it says it all
            return None
        else:
            level = logging.INFO if self._keys else logging.WARNING
            log.log(level, "API keys reloaded: %d", len(self._keys))
            now = {key.id for key in self._keys}
            return Reloaded(sorted(now - before), sorted(before - now))


def single_key(secret: str) -> Key:
    """Return the key of a secret, with the scopes ``chat`` and ``embed``."""
    return Key(
        id=SINGLE_KEY_ID,
        name=SINGLE_KEY_ID,
        tenant=SINGLE_KEY_ID,
        digest=digest_of(secret),
        scopes=("chat", "embed"),
        created_s=0,
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
        return single_key(msgspec.convert(content.decode("ascii").strip(), Secret))
    except ValueError:  # the content is not quoted: it may be a secret
        raise ConfigError(
            f"server.api_key_file {str(path)!r} must hold one key and nothing else: 16 to 512 "
            "characters of ASCII without spaces",
            hint=f"make one by: openssl rand -hex 32 > {path}",
        ) from None
