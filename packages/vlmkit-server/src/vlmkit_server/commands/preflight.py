"""Checks everything that would prevent a server from starting, and likely mistakes.

It opens files, databases and ports as the server would, and closes them again. It loads no model
and creates no file.
"""

import ssl
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from vlmkit.config.path_access import access_error
from vlmkit.config.paths import NamedPath
from vlmkit.errors import ConfigError
from vlmkit_server.auth.key_file import read_lines, valid_keys
from vlmkit_server.auth.key_ring import key_ring
from vlmkit_server.http.certificate import load_certificate, validity
from vlmkit_server.http.listening import health_listener, opened, refuse_unguarded
from vlmkit_server.rate_limits.usage_file import UsageFile
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.storage.data_folder import DATABASE, Folder, check_folder, files_of

_SOON_S = 14 * 86_400
_CHECKED_IN_DETAIL = frozenset(
    {
        "server.keys_file",
        "server.api_key_file",
        "server.tls_certificate",
        "server.tls_private_key",
    }
)
"""Settings of files that have a more detailed check of their own."""


def problems(
    settings: ServerSettings, paths: Iterable[NamedPath], unsound: Collection[str] = ()
) -> list[ConfigError]:
    """Return everything that would prevent a server from starting.

    Args:
        settings: the server's settings.
        paths: the paths that these and the providers' settings name.
        unsound: dotted settings that are known to be invalid; checks that need them are skipped.
    """
    found: list[ConfigError] = []
    unusable = set(unsound)
    for named in dict.fromkeys(paths):
        if named.setting not in _CHECKED_IN_DETAIL and (error := access_error(named)):
            found.append(error)
            unusable.add(named.setting)
    for check, needed in _CHECKS.items():
        if not any(_touches(setting, each) for setting in needed for each in unusable):
            try:
                check(settings)
            except ConfigError as error:
                found += error.each()
    return found


def _touches(setting: str, other: str) -> bool:
    """Tell whether two settings are equal, or one is a section of the other."""
    return f"{setting}.".startswith(f"{other}.") or f"{other}.".startswith(f"{setting}.")


def warnings(settings: ServerSettings) -> Iterator[str]:
    """Yield likely mistakes that do not prevent a server from starting.

    Raises:
        ConfigError: the files are not usable; see :func:`problems`.
    """
    if settings.keys_file:
        path = Path(settings.keys_file)
        if not valid_keys(read_lines(path)):
            yield f"server.keys_file {settings.keys_file!r} has no valid key"
        if _mode(path) & stat.S_IWOTH:
            yield f"server.keys_file {settings.keys_file!r} can be written by every user"
    if settings.api_key_file and _mode(Path(settings.api_key_file)) & stat.S_IROTH:
        yield f"server.api_key_file {settings.api_key_file!r} can be read by every user"
    if settings.tls_certificate:
        key = settings.tls_private_key or settings.tls_certificate
        if _mode(Path(key)) & stat.S_IROTH:
            yield f"the private key {key!r} can be read by every user"
        yield from _validity(settings)


def _validity(settings: ServerSettings) -> Iterator[str]:
    try:
        begin_s, end_s = validity(settings)
    except ConfigError as error:
        yield str(error)
        return
    name, now_s = f"server.tls_certificate {settings.tls_certificate!r}", time.time()
    if now_s < begin_s:
        yield f"{name} is not valid before {_day(begin_s)}"
    elif now_s > end_s:
        yield f"{name} expired on {_day(end_s)}"
    elif now_s > end_s - _SOON_S:
        yield f"{name} expires on {_day(end_s)}"


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _mode(path: Path) -> int:
    """Return the permissions of a file; 0 on a system without such bits."""
    return 0 if sys.platform == "win32" else path.stat().st_mode


def _check_port(settings: ServerSettings) -> None:
    opened(settings.host, settings.port, "server.port").close()


def _check_health_port(settings: ServerSettings) -> None:
    with ExitStack() as both:  # both open at once: they must differ
        with suppress(ConfigError):  # which another check reports
            both.enter_context(closing(opened(settings.host, settings.port, "server.port")))
        if (listener := health_listener(settings)) is not None:
            listener.close()


def _check_keys(settings: ServerSettings) -> None:
    key_ring(settings)


def _check_tls(settings: ServerSettings) -> None:
    if settings.tls_certificate or settings.tls_private_key:
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings)


def _check_usage(settings: ServerSettings) -> None:
    path = Path(settings.limits.usage_file)
    if settings.limits.usage_file and path.exists():
        UsageFile(path, tuple).close()


def _check_data(settings: ServerSettings) -> None:
    if settings.data.folder:
        check_folder(settings.data, files_of(settings))
        if (Path(settings.data.folder) / DATABASE).exists():
            Folder(settings.data, files_of(settings)).close()


_KEYS = ("server.keys_file", "server.api_key", "server.api_key_file")
_ADDRESS = ("server.host", "server.port")
_HEALTH = ("server.health_host", "server.health_port", "server.health_metrics")

_CHECKS: dict[Callable[[ServerSettings], None], tuple[str, ...]] = {
    _check_keys: _KEYS,
    _check_tls: ("server.tls_certificate", "server.tls_private_key"),
    _check_usage: ("server.limits.usage_file",),
    _check_data: ("server.data.folder",),
    refuse_unguarded: (*_KEYS, "server.host", "server.allow_public_without_key"),
    _check_port: _ADDRESS,
    _check_health_port: (*_ADDRESS, *_HEALTH),
}
"""The checks, and the settings that each one needs."""
