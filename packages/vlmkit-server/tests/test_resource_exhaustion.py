"""Clients that open connections and send bodies without end: others are answered meanwhile."""

import json
import logging
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from running_server import chat, eventually, http_request, running, scripted

from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import add_line
from vlmkit_server.http import connection

HUGE = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)
HUGE += b"content-length: 67108864\r\n"
SECOND_ADDRESS = "127.0.0.2"  # a second client address, where the loopback interface has it


def open_connection(server, sent=b"", address="127.0.0.1"):
    """Open a connection from an address and send the first bytes of a request."""
    attacker = socket.create_connection(("127.0.0.1", server.port), 300, (address, 0))
    attacker.sendall(sent)
    return attacker


def is_closed(attacker):
    """Read to the end, which is reached only if the server closes."""
    try:
        while attacker.recv(65_536):
            pass
    except ConnectionError:
        pass
    attacker.close()
    return True


def status(server, **options):
    return server.post(chat("hello", max_tokens=1), **options).status_code


def test_bodies_that_never_arrive_do_not_block_other_clients():
    with running() as server:
        attackers = [open_connection(server, HUGE + b"\r\n{") for _ in range(40)]
        assert eventually(lambda: server.service.admission.limits.body_bytes.num_held == 40)
        assert status(server) == 200
        for attacker in attackers:
            attacker.close()
        assert eventually(lambda: server.service.admission.limits.body_bytes.num_held == 0)


def test_bodies_without_a_length_are_answered():
    body = json.dumps(chat("hello", max_tokens=1)).encode()

    def chunked(server):
        head = HUGE.partition(b"content-length")[0] + b"transfer-encoding: chunked\r\n\r\n"
        attacker = open_connection(server, head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        with attacker:
            return attacker.recv(65_536).split()[1]

    with running() as server, ThreadPoolExecutor(64) as pool:
        assert set(pool.map(lambda _: chunked(server), range(64))) == {b"200"}


def test_a_body_of_the_client_that_sends_most_is_evicted(tmp_path):
    path, keys = tmp_path / "keys.jsonl", [new_key(name, ("chat",)) for name in ("hog", "other")]
    for key, _ in keys:
        add_line(path, key)
    hog, other = ({"authorization": f"Bearer {secret}"} for _, secret in keys)
    with running(keys_file=str(path), max_pending_body_bytes=50_000) as server:
        line = f"authorization: {hog['authorization']}\r\n\r\n".encode()
        attackers = [open_connection(server, HUGE + line + b" " * 24_000) for _ in range(2)]
        assert eventually(lambda: server.service.admission.limits.body_bytes.num_held == 48_000)
        answer = server.post(chat("x" * 30_000), headers=hog)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "server_overloaded")
        assert server.post(chat("x" * 20_000), headers=other).status_code == 200
        assert b" 429 " in attackers[0].recv(65_536)
        for attacker in attackers:
            attacker.close()


def test_the_rest_of_a_body_is_not_awaited_after_its_answer(monkeypatch):
    monkeypatch.setattr(connection, "LAST_BYTES_S", 0.05)
    with running() as server:
        attacker = open_connection(
            server, HUGE.replace(b"/v1/chat/completions", b"/nowhere") + b"\r\n{"
        )
        assert b" 404 " in attacker.recv(65_536)
        assert is_closed(attacker)


def test_a_connection_is_reused_after_the_rest_of_a_body_arrived(monkeypatch):
    monkeypatch.setattr(connection, "LAST_BYTES_S", 0.5)
    request = http_request(chat("hello", max_tokens=1))
    with running() as server:
        attacker = open_connection(
            server, request.replace(b"/v1/chat/completions", b"/nowhere")[:-2]
        )
        assert b" 404 " in attacker.recv(65_536)
        attacker.sendall(b"]}" + request)
        assert b" 200 " in attacker.recv(65_536)
        attacker.close()


def test_the_oldest_idle_connection_is_closed_for_a_new_one():
    with running(max_connections=4) as server:
        attackers = [
            open_connection(server, b"GET /healthz HTTP/1.1\r\nhost: lo") for _ in range(4)
        ]
        assert [status(server) for _ in range(3)] == [200] * 3
        assert is_closed(attackers[0])
        for attacker in attackers[1:]:
            attacker.close()


def test_a_connection_over_the_limit_gets_retry_after(caplog):
    caplog.set_level(logging.WARNING)
    slow = http_request(chat(scripted(text="x", tokens=40, latency_s=0.05), stream=True))
    with running(max_connections=2) as server:
        busy = [open_connection(server, slow) for _ in range(2)]
        assert all(b" 200 " in attacker.recv(65_536) for attacker in busy)
        answer = server.get("/healthz")
        assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (503, True)
        assert "connection refused: 2 are open" in caplog.text
        for attacker in busy:
            attacker.close()
        assert eventually(lambda: server.get("/healthz").status_code == 200)


def test_a_connection_with_too_many_pipelined_requests_is_closed():
    slow = http_request(chat(scripted(text="x", tokens=40, latency_s=0.05), stream=True))
    with running() as server:
        attacker = open_connection(
            server, slow + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20
        )
        assert is_closed(attacker)
        assert eventually(server.is_idle)


def test_bytes_between_requests_do_not_keep_a_connection_open():
    with running(header_timeout_s=0.3) as server:
        attacker = open_connection(server, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b" 200 " in attacker.recv(65_536)
        attacker.sendall(b"\r\n")
        assert is_closed(attacker)


def test_bodies_that_never_arrive_use_no_request_quota():
    with running(max_requests=2) as server:
        attackers = [open_connection(server, HUGE + b"\r\n{") for _ in range(10)]
        assert eventually(lambda: server.service.admission.limits.body_bytes.num_held == 10)
        assert status(server) == 200
        for attacker in attackers:
            attacker.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback interface has one address")
def test_connections_of_the_client_with_most_are_closed_for_others():
    with running(max_connections=8, body_timeout_s=300) as server:
        hog = [open_connection(server, HUGE + b"\r\n{", SECOND_ADDRESS) for _ in range(8)]
        assert eventually(lambda: server.service.admission.limits.body_bytes.num_held == 8)
        assert status(server) == 200
        assert is_closed(hog[0])
        assert eventually(lambda: server.service.admission.limits.body_bytes.num_held == 7)
        for attacker in hog:
            attacker.close()
