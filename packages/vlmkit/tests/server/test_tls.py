"""HTTPS, and SIGHUP, which reads certificates and keys again without ending an answer."""

import json
import signal
import ssl
import sys
from pathlib import Path

import httpx2
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from running_server import eventually, process
from test_drain import PROGRAM

from vlmkit.errors import ConfigError
from vlmkit.server.identity.key import made
from vlmkit.server.identity.key_file import add_line
from vlmkit.server.run import serve
from vlmkit.settings.server import ServerSettings

FILES = ("certificate.pem", "key.pem")


def write_certificate(folder: Path) -> ssl.SSLContext:
    """Write a certificate and its key, and return who trusts them."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    certificate, key = (folder / name for name in FILES)
    certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    return trust


def status(url, trust, secret):
    headers = {"authorization": f"Bearer {secret}"}
    try:
        with httpx2.Client(trust_env=False, verify=trust, timeout=300) as http:
            return http.get(f"{url}/version", headers=headers).status_code
    except httpx2.HTTPError:
        return None


@pytest.mark.posix
def test_certificates_and_keys_are_read_again_on_hangup(tmp_path):
    old, keys = write_certificate(tmp_path), tmp_path / "keys.jsonl"
    (first, secret), (second, another) = (made(name, ("chat",)) for name in ("one", "two"))
    add_line(keys, first)
    certificate, key = (str(tmp_path / name) for name in FILES)
    settings = {"port": 0, "keys_file": str(keys)}
    settings |= {"tls_certificate": certificate, "tls_private_key": key}
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", PROGRAM, here, json.dumps(settings), "pipeline"]
    with process(command, tmp_path) as server:
        assert server.url.startswith("https://")
        assert status(server.url, old, secret) == 200
        assert status(server.url, old, another) == 401
        new = write_certificate(tmp_path)
        add_line(keys, second)
        server.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: status(server.url, new, another) == 200)
        assert status(server.url, old, another) is None
        Path(key).write_text("no key")
        server.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "the certificate of before is kept" in server.log.read_text())
        assert status(server.url, new, secret) == 200
        server.process.terminate()
        assert server.process.wait() == 0


def test_a_certificate_that_is_none_is_told_before_anything_is_loaded(tmp_path):
    write_certificate(tmp_path)
    certificate, key = (tmp_path / name for name in FILES)
    settings = ServerSettings(tls_certificate=str(certificate), tls_private_key=str(key))
    for broken in (key, certificate):
        broken.write_text("none")
        with pytest.raises(ConfigError, match="tls_certificate"):
            serve({}, settings)
    for missing in ({"tls_certificate": str(tmp_path / "none")}, {"tls_private_key": str(key)}):
        with pytest.raises(ConfigError, match=r"tls_certificate .* is no file"):
            serve({}, ServerSettings(**missing))


def test_a_key_that_is_encrypted_is_told_and_nobody_is_asked_for_its_password(tmp_path):
    write_certificate(tmp_path)
    certificate, key = (tmp_path / name for name in FILES)
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    settings = ServerSettings(tls_certificate=str(certificate), tls_private_key=str(key))
    with pytest.raises(ConfigError, match="is encrypted"):
        serve({}, settings)
