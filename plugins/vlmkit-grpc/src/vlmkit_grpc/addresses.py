"""Addresses of workers: where a worker listens, and where a gateway finds it."""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote

from vlmkit.errors import ConfigError
from vlmkit_grpc.settings import PORT

SCHEME = "grpc"
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker is.

    Attributes:
        target: what gRPC understands, such as ``127.0.0.1:50051`` or ``unix:/run/worker.sock``.
        is_loopback: whether only this machine reaches it.
    """

    target: str
    is_loopback: bool


def listen_address(text: str) -> WorkerAddress:
    """Return the address that a worker listens on.

    Raises:
        ConfigError: it is none.
    """
    if text.startswith(_UNIX) and text != _UNIX:
        return WorkerAddress(text, is_loopback=True)
    return _network_address(text, "worker.listen")


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
        ConfigError: it holds no address, or a user, a query or a fragment.
    """
    _, _, location = reference.partition("://")
    if any(each in location for each in "?#@"):
        raise ConfigError(
            f"a reference that begins with '{SCHEME}://' has no user, query or fragment",
            hint="set the secret in [runner]",
        )
    authority, slash, path = location.partition("/")
    if not authority:
        files = [f"{_UNIX}/{unquote(each).lstrip('/')}" for each in path.split(",")]
        return WorkerReference(tuple(WorkerAddress(each, is_loopback=True) for each in files), "")
    hosts = authority.split(",")
    if len(set(hosts)) < len(hosts):
        raise ConfigError("the reference of the model names a worker twice")
    addresses = [_network_address(each, "the reference of the model") for each in hosts]
    return WorkerReference(tuple(addresses), unquote(path) if slash else "")


def _network_address(text: str, what: str) -> WorkerAddress:
    found = _HOST.fullmatch(text)
    if found is None or int(found["port"] or PORT) > 65_535:
        raise ConfigError(
            f"{what} is {text!r}, which is no address",
            hint="write HOST:PORT, such as 127.0.0.1:50051 or [::1]:50051, or unix:PATH",
        )
    host = found["host"]
    return WorkerAddress(f"{host}:{found['port'] or PORT}", _is_loopback(host.strip("[]")))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
