"""Addresses of workers: where a worker listens, and where a gateway finds it."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from vlmkit.errors import ConfigError
from vlmkit_grpc.settings import ENCODER_PORT, PORT

SCHEME = "grpc"
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_UNIX = "unix:"
_REFERENCE = "the reference of the model"
_PORTS = {"worker": PORT, "encoder": ENCODER_PORT}
_MAX_PATH_BYTES = 103  # what the address of a local socket holds on macOS; Linux holds 107


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker is.

    Attributes:
        target: what gRPC understands, such as ``127.0.0.1:50051`` or ``unix:/run/worker.sock``.
        is_loopback: whether only this machine reaches it.
    """

    target: str
    is_loopback: bool


def listen_address(text: str, section: str = "worker") -> WorkerAddress:
    """Return the address that a worker or an encoder listens on.

    Raises:
        ConfigError: it is none, or a path that is too long for a socket file.
    """
    return _address(text, f"{section}.listen", _PORTS[section])


def encoder_addresses(texts: Iterable[str]) -> list[WorkerAddress]:
    """Return the addresses of encoders.

    Raises:
        ConfigError: there is none, one is invalid, or one is named twice.
    """
    setting = "media_encoder.addresses"
    found = [_address(text, setting, ENCODER_PORT) for text in texts]
    if not found:
        raise ConfigError(
            f"{setting} names no encoder", hint=f"{setting} = ['gpu2:{ENCODER_PORT}']"
        )
    if len(set(found)) < len(found):
        raise ConfigError(f"{setting} names an encoder twice")
    return found


def _address(text: str, what: str, port: int) -> WorkerAddress:
    if text.startswith(_UNIX) and text != _UNIX:
        return _socket_file(text.removeprefix(_UNIX), what)
    return _network_address(text, what, port)


@dataclass(frozen=True, slots=True)
class WorkerReference:
    """A reference of a model such as ``grpc://gpu1:50051,gpu2:50051/demo``.

    Attributes:
        addresses: where its workers are.
        model: the name that they must give their model; empty for any.
    """

    addresses: tuple[WorkerAddress, ...]
    model: str


def worker_reference(reference: str) -> WorkerReference:
    """Parse a reference; one without hosts, as ``grpc:///run/worker.sock``, is of socket files.

    Raises:
        ConfigError: it holds no address, a path that is too long for a socket file, or a user, a
            query or a fragment.
    """
    _, _, location = reference.partition("://")
    if any(each in location for each in "?#@"):
        raise ConfigError(
            f"a reference that begins with '{SCHEME}://' has no user, query or fragment",
            hint="set the secret in [runner]",
        )
    authority, slash, path = location.partition("/")
    if not authority:
        paths = [f"/{unquote(each).lstrip('/')}" for each in path.split(",")]
        return WorkerReference(tuple(_socket_file(each, _REFERENCE) for each in paths), "")
    hosts = authority.split(",")
    if len(set(hosts)) < len(hosts):
        raise ConfigError(f"{_REFERENCE} names a worker twice")
    addresses = [_network_address(each, _REFERENCE) for each in hosts]
    return WorkerReference(tuple(addresses), unquote(path) if slash else "")


def _socket_file(path: str, what: str) -> WorkerAddress:
    if len(path.encode()) > _MAX_PATH_BYTES:
        raise ConfigError(
            f"{what} names a socket file whose path has over {_MAX_PATH_BYTES} bytes: {path!r}",
            hint="choose a shorter path, such as /run/worker.sock",
        )
    return WorkerAddress(f"{_UNIX}{path}", is_loopback=True)


def _network_address(text: str, what: str, port: int = PORT) -> WorkerAddress:
    found = _HOST.fullmatch(text)
    if found is None or int(found["port"] or port) > 65_535:
        raise ConfigError(
            f"{what} is {text!r}, which is no address",
            hint=f"write HOST:PORT, such as 127.0.0.1:{port} or [::1]:{port}, or unix:PATH",
        )
    host = found["host"]
    return WorkerAddress(f"{host}:{found['port'] or port}", _is_loopback(host.strip("[]")))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
