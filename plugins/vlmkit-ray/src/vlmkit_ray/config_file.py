"""The config of an application, which each node has in a file of its own."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from vlmkit.errors import ConfigError


@dataclass(frozen=True)
class ConfigFile:
    """A config as the application was built with it.

    It is an argument of every replica. So a changed file makes Ray Serve replace all replicas.

    Attributes:
        path: where each node has it.
        digest: the SHA-256 of its content, in hex.
    """

    path: Path
    digest: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the config in a file.

        Raises:
            ConfigError: it cannot be read.
        """
        return cls(path, _digest(path))

    def check(self) -> None:
        """Check that this node has the same file.

        Raises:
            ConfigError: it has none, or another one.
        """
        if _digest(self.path) != self.digest:
            raise ConfigError(
                f"config {str(self.path)!r} of this node is not the one that was deployed",
                hint="give each node the same file, and deploy again",
            )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"config {str(path)!r} cannot be read: {error.strerror}",
            hint="each node needs the file at this path",
        ) from None
