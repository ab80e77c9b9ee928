"""A server behind a proxy on the same machine, which other machines reach through the proxy."""

import contextlib
import http.client
import http.server
import json
import sys
import threading

import httpx2
import pytest
from process_tree import children_of, pid_of_pipeline
from running_server import chat, eventually, process

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8, and lists processes"
)

NAME = "models.example.com"


class Forwarding(http.server.BaseHTTPRequestHandler):
    """Forwards requests as proxies do, with the address and the host name of the client."""

    protocol_version = "HTTP/1.1"
    passes_host = False
    backend = ("127.0.0.1", 0)

    def do_GET(self):
        self._forward()

    def do_POST(self):
        self._forward()

    def _forward(self):
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {
            "host": self.headers["host"] if self.passes_host else "{}:{}".format(*self.backend),
            "content-type": self.headers.get("content-type", ""),
            "x-forwarded-for": self.client_address[0],
            "x-forwarded-host": self.headers["host"],
            "forwarded": f"for={self.client_address[0]};host={self.headers['host']}",
            "x-real-ip": self.client_address[0],
        }
        with contextlib.closing(http.client.HTTPConnection(*self.backend, timeout=300)) as server:
            server.request(self.command, self.path, content, headers)
            answer = server.getresponse()
            body = answer.read()
        self.send_response(answer.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Write no log."""


@contextlib.contextmanager
def proxied(folder, *, passes_host=False, **settings):
    """Run a server, and a proxy in front of it; yield the server and a function that asks it."""
    settings = {"server.port": 0} | settings
    assigned = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", *assigned]
    with process(command, folder) as server:
        assert eventually(lambda: server.status() == 200), server.log.read_text()
        backend = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        own = {"backend": backend, "passes_host": passes_host}
        handler = type("Handler", (Forwarding,), own)
        proxy = http.server.ThreadingHTTPServer(("127.0.0.2", 0), handler)
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()

        def ask(address="127.0.0.3"):
            """Return the status of a request that comes from an address."""
            transport = httpx2.HTTPTransport(local_address=address)
            with httpx2.Client(transport=transport, trust_env=False, timeout=300) as client:
                url = f"http://127.0.0.2:{proxy.server_port}/v1/chat/completions"
                return client.post(url, json=chat(), headers={"host": NAME}).status_code

        try:
            yield server, ask
        finally:
            proxy.shutdown()
            thread.join()
            proxy.server_close()


def test_all_clients_of_a_proxy_have_one_address_in_limits_and_logs(tmp_path):
    limits = {"server.limits.address": '["requests=2/hour"]'}
    logs = {f"server.{name}_log": str(tmp_path / name) for name in ("access", "audit")}
    with proxied(tmp_path, **limits, **logs) as (server, ask):
        assert [ask(f"127.0.0.{number}") for number in (3, 4, 5)] == [200, 200, 429]
        server.process.terminate()
        assert server.process.wait(60) == 0
    lines = [json.loads(line) for line in (tmp_path / "access").read_text().splitlines()]
    asked = [line for line in lines if line["route"] == "/v1/chat/completions"]
    assert len(asked) == 3
    assert {line["address"] for line in asked} == {"127.0.0.1"}
    assert not any(f"127.0.0.{n}" in (tmp_path / "audit").read_text() for n in (3, 4, 5))


@pytest.mark.parametrize(
    ("passes_host", "allowed", "status"),
    [(False, "[]", 200), (True, "[]", 421), (True, f'["{NAME}"]', 200)],
)
def test_a_name_that_a_proxy_passes_must_be_allowed(passes_host, allowed, status, tmp_path):
    names = {"server.allowed_hosts": allowed}
    with proxied(tmp_path, passes_host=passes_host, **names) as (_, ask):
        assert ask() == status


def test_behind_a_proxy_a_server_has_the_defaults_of_loopback(tmp_path):
    with proxied(tmp_path) as (server, ask):
        assert ask() == 200  # without a key
        assert children_of(pid_of_pipeline(server), "vlmkit.assembly.renderer") == []
        log = server.log.read_text()
    assert "WARNING" not in log
    assert "is not set" not in log
