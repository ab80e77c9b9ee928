"""Connections that exhaust a server: endless handshakes, many addresses, no file descriptors."""

import json
import resource
import socket
import sys
import textwrap
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from running_server import eventually, process, running
from test_resource_exhaustion import is_closed, open_connection, status
from test_tls import FILES, write_certificate

HELLO = bytes.fromhex("16030100c8010000c40303")  # the first bytes of a TLS ClientHello
pytestmark = pytest.mark.posix


def tls_status(server, trust):
    with httpx2.Client(trust_env=False, verify=trust, timeout=300) as http:
        return http.get(f"https://127.0.0.1:{server.port}/healthz").status_code


def tls_server(tmp_path, **settings):
    trust = write_certificate(tmp_path)
    certificate, key = (str(tmp_path / name) for name in FILES)
    return trust, running(tls_certificate=certificate, tls_private_key=key, **settings)


def test_endless_handshakes_are_counted_and_evicted(tmp_path):
    trust, started = tls_server(tmp_path, max_connections=8, header_timeout_s=600)
    with started as server:
        quota = server.service.admission.limits.connections
        attackers = [open_connection(server, HELLO if number % 2 else b"") for number in range(100)]
        assert eventually(lambda: quota.num_held == 8)
        assert tls_status(server, trust) == 200
        assert quota.num_held <= 8
        for attacker in attackers:
            attacker.close()
        assert eventually(lambda: quota.num_held == 0)


def test_a_handshake_that_takes_too_long_is_closed(tmp_path):
    _, started = tls_server(tmp_path, header_timeout_s=0.3)
    with started as server:
        assert is_closed(open_connection(server, HELLO))
        assert is_closed(open_connection(server))
        assert is_closed(open_connection(server, b"GET /healthz HTTP/1.1\r\n\r\n"))
        assert eventually(lambda: server.service.admission.limits.connections.num_held == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback interface has one address")
def test_a_client_with_many_addresses_blocks_no_other():
    with running(max_connections=8, header_timeout_s=600) as server:
        attackers = [
            open_connection(server, b"GET ", f"127.0.1.{number}") for number in range(1, 21)
        ]
        assert eventually(lambda: server.service.admission.limits.connections.num_held == 8)
        assert [status(server) for _ in range(4)] == [200] * 4
        for attacker in attackers:
            attacker.close()


PROGRAM = textwrap.dedent("""
    import json, logging, os, resource, sys, time
    from pathlib import Path
    logging.basicConfig(level=logging.INFO)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    sys.path += [sys.argv[1], str(Path(sys.argv[1]).parents[2] / "tests")]
    from running_server import mock_pipeline
    from vlmkit_server.run import serve
    from vlmkit_server.settings.server import ServerSettings

    def load():
        taken = []
        while not Path("take").exists():  # which takes no file, as an import in between would
            time.sleep(0.01)
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            os.mkdir("full")
        while not Path("go").exists():
            time.sleep(0.01)
        for file in taken:
            os.close(file)
        return mock_pipeline()

    serve({"mock": load}, ServerSettings(port=0))
""")


def test_a_server_out_of_file_descriptors_logs_it_once_and_recovers(tmp_path):
    here = str(Path(__file__).parent)
    with process([sys.executable, "-c", PROGRAM, here], tmp_path) as server:
        (tmp_path / "take").touch()
        assert eventually((tmp_path / "full").exists)
        url = urlsplit(server.url)
        idle = [socket.create_connection((url.hostname, url.port), 300) for _ in range(20)]
        assert [server.status("/healthz") for _ in range(10)] == [200] * 10
        log = server.log.read_text()
        assert log.count("too many open files") == 1
        (tmp_path / "go").touch()
        assert eventually(lambda: server.status() == 200)
        assert "max_connections reduced to 32" in log
        for attacker in idle:
            attacker.close()


@pytest.mark.slow
def test_ten_thousand_idle_connections_block_no_active_client(tmp_path):
    num = 10_000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < num + 500:
        pytest.skip("the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    from test_drain import PROGRAM as SERVER

    settings = {"port": 0, "max_connections": num, "header_timeout_s": 600}
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", SERVER, here, json.dumps(settings), "pipeline"]
    with process(command, tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        url = urlsplit(server.url)
        attackers = []
        for number in range(num + 500):
            address = f"127.0.{number // 250 + 1}.{number % 250 + 1}"
            attackers.append(socket.create_connection((url.hostname, url.port), 300, (address, 0)))
        assert [server.status() for _ in range(20)] == [200] * 20
        for attacker in attackers:
            attacker.close()
        assert server.status() == 200
