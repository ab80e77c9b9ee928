"""The keys that are taken now: looked up by their secrets, in a time that tells nothing of them."""

import hmac
import logging
import time
from pathlib import Path
from typing import NamedTuple

from vlmkit.errors import ConfigError
from vlmkit.server.identity.key import Key, digest_of
from vlmkit.server.identity.key_file import read_lines, valid_keys

log = logging.getLogger(__name__)


class Reloaded(NamedTuple):
    """What is other than before.

    Attributes:
        added: ids of keys that are taken now.
        revoked: ids of those that are not any more.
    """

    added: list[str]
    revoked: list[str]


class KeyRing:
    """The keys of a file.

    Args:
        path: of the file.

    Raises:
        ConfigError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys = valid_keys(read_lines(path))

    def find(self, secret: str) -> Key | None:
        """Return the key of a secret, if there is one whose time has not ended.

        Every key is compared, whichever it is.
        """
        digest, found = digest_of(secret), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return None if found is None or found.is_over(time.time()) else found

    def by_id(self, key_id: str) -> Key | None:
        """Return the key that is called so, if there is one whose time has not ended."""
        found = next((key for key in self._keys if key.id == key_id), None)
        return None if found is None or found.is_over(time.time()) else found

    def reload(self) -> "Reloaded | None":
        """Read the file again; keep the previous keys if it cannot be read.

        Returns:
            What is other than before; None where the file cannot be read.
        """
        before = {key.id for key in self._keys}
        try:
            self._keys = valid_keys(read_lines(self._path))
        except ConfigError as error:
            log.error("reload failed, keeping the previous API keys: %s", error)  # noqa: TRY400 - it says it all
            return None
        else:
            how = logging.INFO if self._keys else logging.WARNING
            log.log(how, "API keys reloaded: %d", len(self._keys))
            now = {key.id for key in self._keys}
            return Reloaded(sorted(now - before), sorted(before - now))
