"""The certificate of HTTPS, from its files: at the start, and whenever it is to be read again."""

import contextlib
import ssl
from typing import Any

from vlmkit.errors import ConfigError
from vlmkit_server.settings.server import ServerSettings

_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for


def load_certificate(context: ssl.SSLContext, settings: ServerSettings) -> None:
    """Use the certificate that is in its files now.

    Raises:
        ConfigError: there is none, or its key is another's.
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

    def ask() -> str:  # on a terminal, it would be asked for there, and all would wait
        raise ConfigError(f"the key of server.tls_certificate {certificate!r} is encrypted")

    try:
        context.load_cert_chain(certificate, key, ask)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(_flaw(certificate, key, error)) from error


def validity(settings: ServerSettings) -> tuple[float, float]:
    """Return from when until when a certificate is valid, in seconds since 1970.

    Raises:
        ConfigError: it cannot be used.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(server, settings)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(settings.tls_certificate)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    try:
        said = _handshake(client, server)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"server.tls_certificate {settings.tls_certificate!r} is not for a server: "
            f"{error.verify_message}"
        ) from error
    return ssl.cert_time_to_seconds(said["notBefore"]), ssl.cert_time_to_seconds(said["notAfter"])


def _unreadable(setting: str, file: str) -> ConfigError | None:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 - a path is a text here
            opened.read(1)
    except FileNotFoundError:
        return ConfigError(f"{setting} {file!r} is no file", hint="check the path")
    except OSError as error:
        return ConfigError(
            f"{setting} {file!r} cannot be read: {error.strerror}",
            hint="it is a folder: name a file in it"
            if isinstance(error, IsADirectoryError)
            else "let the server's user read it",
        )
    return None


def _flaw(certificate: str, key: str | None, error: Exception) -> str:
    """Say which file is wrong, as far as OpenSSL tells."""
    name = f"server.tls_certificate {certificate!r}"
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"{name} and the key {key or certificate!r} do not belong together"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except ssl.SSLError:
        return f"{name} has no certificate in PEM"
    return f"{name} cannot be used with the key {key or certificate!r}: it is no key in PEM"


def _handshake(client_side: ssl.SSLContext, server_side: ssl.SSLContext) -> dict[str, Any]:
    """Return what a client reads of a certificate; no network is used."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert() or {}
