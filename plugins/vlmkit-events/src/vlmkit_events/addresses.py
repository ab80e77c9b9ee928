"""The addresses on which events are published: loopback and local sockets alone.

Events contain prompts, and ZMQ as routers use it has neither encryption nor keys.
"""

import ipaddress
import re
import stat
from pathlib import Path
from typing import NamedTuple

from vlmkit.errors import ConfigError

MAX_RANKS = 64  # as many replicas as a runner may have
MAX_PATH_BYTES = 100  # what the address of a local socket holds on every system, less a rank
TCP = re.compile(r"tcp://(\[[0-9a-fA-F:]+\]|[^:\[\]/]+):(\d{1,5})")
WHERE = "monitors.kv_events"


class Address(NamedTuple):
    """An address for each replica of a model.

    Attributes:
        base: of the first replica, without its port.
        port: of the first replica; 0 for a local socket.
    """

    base: str
    port: int

    def of(self, rank: int) -> str:
        """Return the address of one replica, as ZMQ takes it."""
        if self.port:
            return f"{self.base}:{self.port + rank}"
        return f"{self.base}-{rank}" if rank else self.base

    @property
    def path(self) -> Path | None:
        """The path of a local socket of the first replica."""
        return None if self.port else Path(self.base.removeprefix("ipc://"))


def address(text: str, setting: str) -> Address:
    """Return a checked address.

    Args:
        text: the address of the first replica.
        setting: the name of its setting in errors.

    Raises:
        ConfigError: it is malformed, or others than this machine could reach it.
    """
    if text.startswith("ipc://"):
        return _local_socket(text, setting)
    found = TCP.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= 65535 - MAX_RANKS:
        raise ConfigError(
            f"{WHERE}.{setting}: {text!r} is neither tcp://HOST:PORT with a port up to "
            f"{65535 - MAX_RANKS} nor ipc:// with a path"
        )
    host = "127.0.0.1" if found[1] == "localhost" else found[1]
    if not _is_loopback(host):
        raise ConfigError(
            f"{WHERE}.{setting}: {text!r} is not a loopback address, and events contain prompts",
            hint="publish on tcp://127.0.0.1:PORT or ipc://PATH, and forward it through a tunnel "
            "with encryption",
        )
    return Address(f"tcp://{host}", int(found[2]))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name, whose address may change
        return False


def _local_socket(text: str, setting: str) -> Address:
    path = text.removeprefix("ipc://")
    if not path.startswith("/") or len(path.encode()) > MAX_PATH_BYTES:
        raise ConfigError(
            f"{WHERE}.{setting}: {text!r} is not ipc:// with an absolute path of at most "
            f"{MAX_PATH_BYTES} bytes"
        )
    return Address(text, 0)


def check_replaceable(path: Path) -> None:
    """Raise a ConfigError if a path is something else than a local socket or nothing.

    Binding a local socket deletes what has its path.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{WHERE}: the path {str(path)!r} cannot be used: {error}") from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{WHERE}: the path {str(path)!r} exists and is no socket")
