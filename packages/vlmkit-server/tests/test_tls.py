"""HTTPS, and SIGHUP, which reloads certificates and keys without ending an answer."""

import contextlib
import json
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from running_server import eventually, process
from test_drain import PROGRAM

from vlmkit.errors import ConfigError
from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import add_line
from vlmkit_server.run import serve
from vlmkit_server.settings.server import ServerSettings

FILES = ("certificate.pem", "key.pem")


def write_certificate(folder: Path) -> ssl.SSLContext:
    """Write a certificate and its key, and return a context that trusts them."""
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
def test_certificates_and_keys_are_reloaded_on_sighup(tmp_path):
    old, keys = write_certificate(tmp_path), tmp_path / "keys.jsonl"
    (first, secret), (second, another) = (new_key(name, ("chat",)) for name in ("one", "two"))
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
        failure = "reload failed, keeping the previous certificate: "
        assert eventually(lambda: failure in server.log.read_text())
        assert status(server.url, new, secret) == 200
        server.process.terminate()
        assert server.process.wait() == 0


def test_an_invalid_certificate_is_reported_before_models_load(tmp_path):
    write_certificate(tmp_path)
    certificate, key = (tmp_path / name for name in FILES)
    settings = ServerSettings(tls_certificate=str(certificate), tls_private_key=str(key))
    for broken in (key, certificate):
        broken.write_text("none")
        with pytest.raises(ConfigError, match="tls_certificate"):
            serve({}, settings)
    with pytest.raises(ConfigError, match=r"tls_certificate .* does not exist"):
        serve({}, ServerSettings(tls_certificate=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match=r"tls_private_key .* and server.tls_certificate is not"):
        serve({}, ServerSettings(tls_private_key=str(key)))


def test_an_encrypted_key_is_reported_without_a_password_prompt(tmp_path):
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


def test_the_checklist_of_the_guide_for_public_servers_works(tmp_path):
    """The config is used as it stands, except for the address and the model, which is a mock."""
    pytest.importorskip("vlmkit_hf")
    guide = (Path(__file__).parents[3] / "docs/how-to/secure-a-server.md").read_text()
    part = guide.partition("### Before strangers reach it")[2].partition("\n## ")[0]
    [config], [command] = (
        re.findall(rf"```{language}\n(.*?)```", part, re.DOTALL) for language in ("toml", "console")
    )
    assert 'host = "0.0.0.0"' in config
    config = config.replace("0.0.0.0", "127.0.0.1").replace('"vlmkit-onnx"', '"vlmkit-mock"')
    (tmp_path / "vlmkit.toml").write_text(config)
    trust = write_certificate(tmp_path)
    made_key = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    secret = made_key.stdout.strip()
    serve_it = [sys.executable, "-m", "vlmkit", "serve", "mock", "--config", "vlmkit.toml"]
    with (
        public_server([*serve_it, "--port", "0"], tmp_path) as port,
        httpx2.Client(trust_env=False, verify=trust, timeout=300) as http,
    ):
        url = f"https://127.0.0.1:{port}"
        host = {"host": "models.example.com"}
        headers = {"authorization": f"Bearer {secret}"} | host
        assert eventually(lambda: http.get(f"{url}/readyz", headers=headers).status_code == 200)
        body = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}
        chat = f"{url}/v1/chat/completions"
        answer = http.post(chat, json=body, headers=headers)
        assert answer.json()["choices"][0]["message"]["content"] == "hello"
        assert answer.headers["x-ratelimit-limit-requests"] == "60"
        assert answer.headers["x-ratelimit-limit-images"] == "500"
        assert answer.headers["x-ratelimit-limit-tokens"] == "200000"
        assert http.post(chat, json=body, headers=host).status_code == 401
        elsewhere = headers | {"host": "elsewhere.example.com"}
        assert http.post(chat, json=body, headers=elsewhere).status_code == 421
        longer = http.post(chat, json=body | {"max_tokens": 4097}, headers=headers)
        assert (longer.status_code, longer.headers["x-vlmkit-max-tokens"]) == (200, "4096")
    assert '"route": "/v1/chat/completions"' in (tmp_path / "access.jsonl").read_text()
    assert '"event": "started"' in (tmp_path / "audit.jsonl").read_text()
    assert (tmp_path / "usage.sqlite").exists()
    records = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    lines = [line["message"] for line in records if "of vlmkit-demo" in line["message"]]
    assert lines == ["plugin 'demo' of vlmkit-demo is not loaded: plugins.only does not list it"]


@contextlib.contextmanager
def public_server(command, folder):
    """Run a server with a JSON log; yields its port, and ends it like its operator would."""
    log = folder / "log"
    with log.open("wb") as file, subprocess.Popen(command, cwd=folder, stderr=file) as started:
        try:
            assert eventually(lambda: "listening on" in log.read_text(), timeout_s=120)
            yield re.search(r"listening on \w+://[\d.]+:(\d+)", log.read_text())[1]
            started.terminate()
            assert started.wait(60) == 0
        finally:
            started.kill()
