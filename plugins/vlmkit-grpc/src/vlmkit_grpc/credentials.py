"""Who may speak to a worker: the shared secret and TLS, at both ends."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import msgspec

from vlmkit.errors import ConfigError
from vlmkit.settings.bounds import Secret
from vlmkit_grpc.addresses import WorkerAddress, listen_address
from vlmkit_grpc.settings import ConnectSettings, ListenSettings

METADATA_KEY = "authorization"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

Metadata = tuple[tuple[str, str], ...]


def secret_of(settings: ListenSettings | ConnectSettings, section: str) -> str:
    """Return the secret of settings; empty if there is none.

    Raises:
        ConfigError: both a secret and a file are set, or the file cannot be used.
    """
    if not settings.secret_file:
        return settings.secret or ""
    if settings.secret:
        raise ConfigError(f"{section}.secret and {section}.secret_file are both set")
    text = _content(settings.secret_file, f"{section}.secret_file")
    try:
        secret: str = msgspec.convert(text.decode("ascii").strip(), Secret)
    except (UnicodeDecodeError, msgspec.ValidationError):
        raise ConfigError(
            f"{section}.secret_file does not contain one secret",
            hint="write 16 to 512 letters, digits and signs of ASCII into it, and nothing else",
        ) from None
    return secret


def metadata_of(secret: str) -> Metadata:
    """Return what a gateway sends with each call."""
    return ((METADATA_KEY, f"Bearer {secret}"),) if secret else ()


class SecretCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without the secret, except health checks, which state nothing else.

    Args:
        secret: what gateways must send.
    """

    def __init__(self, secret: str) -> None:
        self._digest = _digest(f"Bearer {secret}")

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the handler of a call, or one that refuses it."""
        if handler_call_details.method == HEALTH_CHECK:
            return await continuation(handler_call_details)
        given = dict(handler_call_details.invocation_metadata or ()).get(METADATA_KEY, "")
        if isinstance(given, str) and hmac.compare_digest(_digest(given), self._digest):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the secret is wrong or missing")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()


class Access(NamedTuple):
    """Where a worker listens, and what gateways must prove.

    Attributes:
        address: of the port.
        secret: that gateways must send; empty if they need none.
        credentials: of TLS; None without TLS.
    """

    address: WorkerAddress
    secret: str
    credentials: grpc.ServerCredentials | None


def access_of(settings: ListenSettings, section: str) -> Access:
    """Return the access to a worker or an encoder.

    Args:
        settings: how it listens.
        section: the table of the settings, for errors.

    Raises:
        ConfigError: a setting or a file cannot be used, or other machines reach the address and
            need neither a secret nor a certificate.
    """
    address = listen_address(settings.listen, section)
    _refuse_unguarded(settings, address, section)
    return Access(address, secret_of(settings, section), _server_credentials(settings, section))


def _refuse_unguarded(settings: ListenSettings, address: WorkerAddress, section: str) -> None:
    """Refuse to answer other machines that prove nothing.

    Raises:
        ConfigError: other machines reach the address, and need neither a secret nor a certificate.
    """
    is_guarded = settings.secret or settings.secret_file or settings.tls_client_ca
    if address.is_loopback or is_guarded or settings.allow_public_without_secret:
        return
    raise ConfigError(
        f"{address.target!r} can be reached by other machines, and no secret is required",
        hint=f"name the file of a secret in {section}.secret_file, require certificates by "
        f"{section}.tls_client_ca, or set {section}.allow_public_without_secret in a closed "
        "network",
    )


def _server_credentials(settings: ListenSettings, section: str) -> grpc.ServerCredentials | None:
    """Return the TLS credentials of a process that listens; None without TLS.

    Raises:
        ConfigError: a file cannot be used.
    """
    if not settings.tls_certificate:
        if settings.tls_client_ca or settings.tls_private_key:
            raise ConfigError(
                f"{section}.tls_certificate is not set, and other settings of TLS are"
            )
        return None
    chain = _content(settings.tls_certificate, f"{section}.tls_certificate")
    key = _key(settings.tls_private_key, chain, f"{section}.tls_private_key")
    ca = None
    if settings.tls_client_ca:
        ca = _content(settings.tls_client_ca, f"{section}.tls_client_ca")
    return grpc.ssl_server_credentials(
        [(key, chain)], root_certificates=ca, require_client_auth=ca is not None
    )


def channel_credentials(settings: ConnectSettings, section: str) -> grpc.ChannelCredentials | None:
    """Return the TLS credentials of a gateway; None without TLS.

    Args:
        settings: how it connects.
        section: the section of the settings, for errors.

    Raises:
        ConfigError: a file cannot be used.
    """
    if not settings.encrypts:
        return None
    chain = key = ca = None
    if settings.tls_ca:
        ca = _content(settings.tls_ca, f"{section}.tls_ca")
    if settings.tls_certificate:
        chain = _content(settings.tls_certificate, f"{section}.tls_certificate")
        key = _key(settings.tls_private_key, chain, f"{section}.tls_private_key")
    return grpc.ssl_channel_credentials(ca, key, chain)


def _key(file: str, chain: bytes, setting: str) -> bytes:
    """Return a private key, which may be in the file of its certificate."""
    key = _content(file, setting) if file else chain
    if b"PRIVATE KEY-----" not in key:
        raise ConfigError(f"{setting} is not set, and the file of the certificate has no key")
    return key


def _content(file: str, setting: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting} cannot be read: {error.strerror}") from error
