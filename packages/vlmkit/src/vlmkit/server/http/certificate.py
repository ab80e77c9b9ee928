"""The certificate of HTTPS, from its files: at the start, and whenever it is to be read again."""

import ssl
from pathlib import Path

from vlmkit.errors import ConfigError
from vlmkit.settings.server import ServerSettings


def load_certificate(context: ssl.SSLContext, settings: ServerSettings) -> None:
    """Use the certificate that is in its files now.

    Raises:
        ConfigError: there is none, or its key is another's.
    """
    certificate, key = settings.tls_certificate, settings.tls_private_key or None
    for name, file in (("tls_certificate", certificate), ("tls_private_key", key or certificate)):
        if not Path(file).is_file():
            raise ConfigError(f"server.{name} {file!r} is no file")

    def ask() -> str:  # on a terminal, it would be asked for there, and all would wait
        raise ConfigError(f"the key of server.tls_certificate {certificate!r} is encrypted")

    try:
        context.load_cert_chain(certificate, key, ask)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"server.tls_certificate {certificate!r} cannot be used with its key: they are not "
            "both in PEM, or do not belong together"
        ) from error
