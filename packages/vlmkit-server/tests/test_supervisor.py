"""Health at its own port, whatever the server does; and notifications of systemd."""

import os
import re
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx2
import pytest
from running_server import chat, eventually, http_client, http_request, process, running, scripted
from test_resource_exhaustion import is_closed, open_connection
from two_keys import headers_of

from vlmkit.errors import ConfigError
from vlmkit_server.interfaces.monitor import Monitor, Page
from vlmkit_server.operate import health_listener, supervisor
from vlmkit_server.operate.notify import Notifier
from vlmkit_server.run import serve
from vlmkit_server.settings.server import ServerSettings

ENDLESS = http_request(chat(scripted(text="x", tokens=4000, latency_s=0.05), stream=True))


@pytest.fixture
def health_url(caplog):
    """The address of a server's health port, from its log."""
    caplog.set_level("INFO")

    def found():
        return re.findall(r"health probes on (\S+)", caplog.text)[-1]

    return found


def health(health_url, path="/healthz"):
    with http_client() as http:
        answer = http.get(f"{health_url()}{path}")
        return answer.status_code, answer.json()["status"]


def test_probes_are_answered_while_the_server_is_full(health_url):
    with running(health_port=0, max_connections=1) as server:
        busy = open_connection(server, ENDLESS)
        assert b" 200 " in busy.recv(65_536)
        assert server.get("/healthz").status_code == 503
        assert health(health_url) == (200, "ok")
        assert health(health_url, "/readyz") == (200, "ready")
        busy.close()


def test_probes_work_while_the_event_loop_is_busy_and_fail_when_it_hangs(health_url, monkeypatch):
    gate = threading.Event()
    with running(health_port=0) as server:
        server.service.fleet.recovery._loop.call_soon_threadsafe(gate.wait)
        assert health(health_url) == (200, "ok")
        monkeypatch.setattr(supervisor, "MAX_LAG_S", 0.1)
        assert eventually(lambda: health(health_url) == (503, "failed"))
        assert health(health_url, "/readyz") == (503, "failed")
        gate.set()
        assert eventually(lambda: health(health_url) == (200, "ok"))


def test_health_fails_when_the_engine_fails(health_url):
    with running({"mock": None}, health_port=0):
        assert health(health_url) == (200, "ok")
        assert health(health_url, "/readyz") == (503, "loading")
    with running(health_port=0) as server:
        server.runner().close()
        assert eventually(lambda: health(health_url)[0] == 503)


def test_idle_clients_of_the_health_port_block_no_probe(health_url, monkeypatch):
    monkeypatch.setattr(health_listener, "TIMEOUT_S", 60.0)
    with running(health_port=0):
        port = int(health_url().rpartition(":")[2])
        clients = [socket.create_connection(("127.0.0.1", port), 300) for _ in range(200)]
        for client in clients[::2]:
            client.sendall(b"GET /healthz")
        with ThreadPoolExecutor(4) as pool:
            statuses = list(pool.map(lambda _: health(health_url), range(20)))
        assert statuses == [(200, "ok")] * 20
        assert all(is_closed(client) for client in clients[:100])
        for client in clients[100:]:
            client.close()


def test_a_silent_client_of_the_health_port_times_out(health_url, monkeypatch):
    monkeypatch.setattr(health_listener, "TIMEOUT_S", 0.2)
    with running(health_port=0):
        port = int(health_url().rpartition(":")[2])
        assert is_closed(socket.create_connection(("127.0.0.1", port), 300))


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /v1/models HTTP/1.1", b"404"),
        (b"POST /healthz HTTP/1.1", b"405"),
        (b"HEAD /healthz?x=1 HTTP/1.0", b"200"),
        (b"\xff\x00", b"404"),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 20_000, b"200"),
    ],
)
def test_the_health_port_serves_nothing_else(health_url, request_line, status):
    with running(health_port=0):
        port = int(health_url().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 300) as client:
            client.sendall(request_line + b"\r\n\r\n")
            assert client.recv(65_536).split()[1] == status


class MetricsMonitor(Monitor):
    """Shows the request and its thread on the metrics page."""

    def __init__(self):
        self.threads = set()

    def page(self, state, accept):
        self.threads.add(threading.current_thread())
        return Page(f"{state.status} {accept}".encode(), "text/plain")


def metrics(health_url, method="GET", **headers):
    with http_client() as http:
        return http.request(method, f"{health_url()}/metrics", headers=headers)


def test_the_health_port_serves_metrics_if_enabled(health_url, tmp_path):
    monitor, (key,) = MetricsMonitor(), headers_of(tmp_path, "metrics", scopes=("metrics",))
    wanted = {"health_port": 0, "health_metrics": True, "max_connections": 1}
    keys = str(tmp_path / "keys.jsonl")
    with running(monitors={"told": monitor}, keys_file=keys, **wanted) as server:
        assert server.get("/metrics").status_code == 401
        assert server.get("/metrics", headers=key | {"accept": "a/b"}).text == "ready a/b"
        busy = open_connection(server, b"GET /healthz HTTP/1.1\r\n")
        answer = metrics(health_url, accept="x/y")
        assert (answer.status_code, answer.text) == (200, "ready x/y")
        assert answer.headers["content-type"] == "text/plain"
        assert metrics(health_url, "HEAD").content == b""
        assert metrics(health_url, "POST").status_code == 405
        assert health(health_url) == (200, "ok")
        assert len(monitor.threads) == 1
        busy.close()


@pytest.mark.parametrize("is_wanted", [False, True])
def test_the_health_port_serves_no_metrics_if_disabled_or_without_a_monitor(health_url, is_wanted):
    monitors = {} if is_wanted else {"told": MetricsMonitor()}
    with running(monitors=monitors, health_port=0, health_metrics=is_wanted):
        assert metrics(health_url).status_code == 404


def test_metrics_are_not_served_while_the_event_loop_hangs(health_url, monkeypatch):
    monkeypatch.setattr(health_listener, "TIMEOUT_S", 0.2)
    gate = threading.Event()
    with running(monitors={"told": MetricsMonitor()}, health_port=0, health_metrics=True) as server:
        server.service.fleet.recovery._loop.call_soon_threadsafe(gate.wait)
        with pytest.raises(httpx2.RemoteProtocolError):
            metrics(health_url)
        assert health(health_url) == (200, "ok")
        gate.set()
        assert eventually(lambda: metrics(health_url).status_code == 200)


def test_health_metrics_require_a_health_port():
    with pytest.raises(ConfigError, match="health_metrics") as caught:
        serve({}, ServerSettings(port=0, health_metrics=True))
    assert caught.value.hint == "set server.health_port"


def test_a_health_port_in_use_is_reported_before_models_load():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="cannot be listened on") as caught:
            serve({}, ServerSettings(port=0, health_port=port))
    assert caught.value.hint == "choose another server.health_port"


# Systemd.


class Manager:
    """Receives notifications like systemd."""

    def __init__(self, address):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(300)
        self.heard = []

    def hears(self, said):
        """Wait for a notification; without a value, any value counts."""
        while not any(said in (line, line.partition("=")[0]) for line in self.heard):
            self.heard += self._socket.recv(4096).decode().split("\n")
        return True

    def close(self):
        self._socket.close()


@pytest.mark.posix
@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_notified_of_start_reload_watchdog_and_stop(
    tmp_path, socket_folder, monkeypatch, is_abstract
):
    name = f"@vlmkit-{os.getpid()}" if is_abstract else str(socket_folder / "notify")
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "600000")
    with (
        closing(Manager(name.replace("@", "\0"))) as manager,
        process(command, tmp_path) as server,
    ):
        assert manager.hears("READY=1")
        assert "EXTEND_TIMEOUT_USEC=60000000" in manager.heard
        assert server.status() == 200
        manager.heard.clear()
        assert manager.hears("WATCHDOG=1")
        server.process.send_signal(signal.SIGHUP)
        assert manager.hears("RELOADING=1")
        assert manager.hears("MONOTONIC_USEC")
        at = next(int(line[15:]) for line in manager.heard if line.startswith("MONOTONIC_USEC="))
        assert at <= time.monotonic_ns() // 1000
        assert manager.hears("READY=1")
        server.process.terminate()
        assert manager.hears("STOPPING=1")
        assert server.process.wait(300) == 0


@pytest.mark.posix
def test_systemd_gets_no_watchdog_message_while_the_event_loop_hangs(monkeypatch):
    heard = []
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    monkeypatch.setattr(Notifier, "send", lambda _, *lines: heard.extend(lines))
    gate = threading.Event()
    with running() as server:
        assert eventually(lambda: "WATCHDOG=1" in heard)
        server.service.fleet.recovery._loop.call_soon_threadsafe(gate.wait)
        server_is_held = threading.Event()
        assert not server_is_held.wait(0.3)
        heard.clear()
        assert not server_is_held.wait(0.3)
        assert "WATCHDOG=1" not in heard
        gate.set()
        assert eventually(lambda: "WATCHDOG=1" in heard)


def test_nothing_is_sent_without_systemd(monkeypatch):
    notifier = Notifier({"WATCHDOG_USEC": "1000"})
    assert notifier.watchdog_s is None
    assert not notifier.is_enabled
    notifier.send("READY=1")
    Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).send("READY=1")
    other = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    assert Notifier(other).watchdog_s is None
