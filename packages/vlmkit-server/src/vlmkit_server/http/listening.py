"""Opens the server's ports, and explains to the operator why one cannot be opened."""

import socket

from vlmkit.errors import ConfigError
from vlmkit_server.settings.server import ServerSettings

# Connections that wait to be accepted. The system caps it; a client beyond that retries after 1 s.
BACKLOG = 65_535


def listener(settings: ServerSettings) -> socket.socket:
    """Open the server's port.

    Raises:
        ConfigError: the address is unavailable, or needs API keys.
    """
    refuse_unguarded(settings)
    return opened(settings.host, settings.port, "server.port")


def refuse_unguarded(settings: ServerSettings) -> None:
    """Refuse to serve other machines without API keys.

    Raises:
        ConfigError: other machines can reach the address, and no API key is required.
    """
    is_guarded = settings.asks_for_keys or settings.allow_public_without_key
    if settings.is_public and not is_guarded:
        raise ConfigError(
            f"host {settings.host!r} can be reached by other machines, and no API key is required",
            hint="create one by vlmkit keys add and name its file in server.keys_file, set one by "
            "VLMKIT_SERVER__API_KEY, or, behind a proxy that requires one, set "
            "server.allow_public_without_key",
        )


def health_listener(settings: ServerSettings) -> socket.socket | None:
    """Open the port of health probes, if one is set.

    Raises:
        ConfigError: the address is unavailable, or metrics are enabled on a port that is not set.
    """
    if settings.health_port is not None:
        host = settings.health_host or settings.host
        return opened(host, settings.health_port, "server.health_port")
    if settings.health_metrics:
        raise ConfigError(
            "server.health_metrics is set, and server.health_port is not",
            hint="set server.health_port",
        )
    return None


def opened(host: str, port: int, setting: str) -> socket.socket:
    """Listen on an address.

    Args:
        host: a name or an address.
        port: the port; 0 selects a free one.
        setting: the setting of the port, for the error.

    Raises:
        ConfigError: the address is unavailable.
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
    """Return the address of a socket as it is written in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
