"""Reads the TLS certificate from its files, at startup and on each reload."""

import contextlib
import ssl
from typing import Any

from vlmkit.errors import ConfigError
from vlmkit_server.settings.server import ServerSettings

_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, absent in ssl


def load_certificate(context: ssl.SSLContext, settings: ServerSettings) -> None:
    """Load the certificate and key from their files into a TLS context.

    Raises:
        ConfigError: a file is missing or invalid, or the key belongs to another certificate.
    """
    certificate, key = settings.tls_certificate, settings.tls_private_key or None
    if not certificate:
        raise ConfigError(
            f"server.tls_private_key {key!r} is set, and server.tls_certificate is not",
            hint="name the certificate of this key",
        )
    files = {certificate: "server.tls_certificate"}
    files.setdefault(key or certificate, "server.tls_private_key")
    errors = [error for file, name in files.items() if (error := _unreadable(name, file))]
    if errors:
        raise ConfigError.together(errors)

    def refuse_password() -> str:  # OpenSSL would block on a prompt at the terminal
        raise ConfigError(f"the key of server.tls_certificate {certificate!r} is encrypted")

    try:
        context.load_cert_chain(certificate, key, refuse_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(_load_error(certificate, key, error)) from error


def validity(settings: ServerSettings) -> tuple[float, float]:
    """Return the start and end of a certificate's validity, in seconds since 1970.

    Raises:
        ConfigError: the certificate cannot be used.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(server, settings)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(settings.tls_certificate)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    try:
        received = _handshake(client, server)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"server.tls_certificate {settings.tls_certificate!r} is not for a server: "
            f"{error.verify_message}"
        ) from error
    return (
        ssl.cert_time_to_seconds(received["notBefore"]),
        ssl.cert_time_to_seconds(received["notAfter"]),
    )


def _unreadable(setting: str, file: str) -> ConfigError | None:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 - the path is a string
            opened.read(1)
    except FileNotFoundError:
        return ConfigError(f"{setting} {file!r} does not exist", hint="check the path")
    except OSError as error:
        return ConfigError(
            f"{setting} {file!r} cannot be read: {error.strerror}",
            hint="it is a folder: name a file in it"
            if isinstance(error, IsADirectoryError)
            else "let the server's user read it",
        )
    return None


def _load_error(certificate: str, key: str | None, error: Exception) -> str:
    """Return a message that names the wrong file, as far as OpenSSL reports it."""
    name = f"server.tls_certificate {certificate!r}"
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"{name} and the key {key or certificate!r} do not match"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except ssl.SSLError:
        return f"{name} contains no certificate in PEM"
    return f"{name} cannot be used with the key {key or certificate!r}: it is not a key in PEM"


def _handshake(client_side: ssl.SSLContext, server_side: ssl.SSLContext) -> dict[str, Any]:
    """Return the certificate that a client receives in a handshake; uses no network."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert() or {}
