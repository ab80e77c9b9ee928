"""Opening a port, or saying in the operator's words why it cannot be."""

import socket

from vlmkit.errors import ConfigError

# Of callers at once; the system has a bound of its own, and who finds no place there tries again
# a second later.
BACKLOG = 65_535


def opened(host: str, port: int, setting: str) -> socket.socket:
    """Listen at an address.

    Args:
        host: a name or an address.
        port: 0 takes a free one.
        setting: which one says so, for the error.

    Raises:
        ConfigError: it cannot be listened on.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = (error.strerror or "").partition(" (while ")[0]  # Python repeats the address
        raise ConfigError(
            f"host {host!r}, port {port!r} cannot be listened on: {reason}",
            hint=f"choose another {setting}",
        ) from error


def shown(listener: socket.socket) -> str:
    """Return where a socket listens, as a URL has it."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
