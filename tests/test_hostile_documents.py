"""Documents that take hours to render: other tenants do not wait, and nothing is left behind.

No test measures time: every document would take much longer to render than the test waits.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sys
import time
from base64 import b64encode
from pathlib import Path
from subprocess import Popen
from urllib.parse import urlsplit

import pytest

from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import add_line

pytest.importorskip("pypdfium2")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")

NUM_DOCUMENTS = 26
DRAWING_S = 1000  # for one document
WAIT_S = 120  # for anything, on a busy machine


def endless():
    """A page that is filled with millions of tiles, again and again."""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 2000 2000]/Contents 4 0 R/Resources<<%b>>>>"
    fills = b"/Pattern cs /P scn " + b"0 0 2000 2000 re f " * 64
    tile = b"1 0 0 rg 0 0 1 1 re f"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        page % b"/Pattern<</P 5 0 R>>",
        b"<</Length %d>>stream\n%b\nendstream" % (len(fills), fills),
        b"<</Type/Pattern/PatternType 1/PaintType 1/TilingType 1/BBox[0 0 2000 2000]"
        b"/XStep .7/YStep .7/Resources<<>>/Length %d>>stream\n%b\nendstream" % (len(tile), tile),
    ]
    written = (b"%d 0 obj\n%b\nendobj\n" % each for each in enumerate(objects, 1))
    return b"%PDF-1.7\n" + b"".join(written) + b"trailer<</Size 9/Root 1 0 R>>\n"


@contextlib.contextmanager
def served(folder, num_renderers):
    """Run a server for two tenants; yield its process, its address and a key for each."""
    secrets = {}
    for tenant in ("one", "other"):
        key, secrets[tenant] = new_key(tenant, ("chat",), tenant=tenant)
        add_line(folder / "keys.jsonl", key)
    settings = {
        "server.keys_file": "keys.jsonl",
        "server.num_renderers": num_renderers,
        "server.drain_timeout_s": 2,
        "pipeline.prepare_timeout_s": DRAWING_S,
        "media_loaders.pdf.timeout_s": DRAWING_S,
    }
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0", *given]
    log = folder / "log"
    with log.open("wb") as file, Popen(command, cwd=folder, stderr=file) as server:
        try:
            eventually(lambda: "'mock' is ready\n" in log.read_text() or server.poll() is not None)
            yield server, urlsplit(re.search(r"listening on (\S+)", log.read_text())[1]), secrets
        finally:
            server.kill()


def request(key, *parts):
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": parts}]}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return body, headers


def ask(address, key, text="hello"):
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=WAIT_S)
    with contextlib.closing(connection):
        body, headers = request(key, {"type": "text", "text": text})
        connection.request("POST", "/v1/chat/completions", body, headers)
        return connection.getresponse().status


def flood(address, key):
    """Send documents, and return the open connections."""
    url = "data:application/pdf;base64," + b64encode(endless()).decode()
    body, headers = request(key, {"type": "file", "file": {"file_data": url, "filename": "a.pdf"}})
    lines = [f"{name}: {value}" for name, value in headers.items()]
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: 127.0.0.1",
        f"content-length: {len(body)}",
        *lines,
    ]
    pipelined = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 2
    sent = "\r\n".join([*head, "", ""]).encode() + body + pipelined
    connections = []
    for _ in range(NUM_DOCUMENTS):
        connections.append(socket.create_connection((address.hostname, address.port), WAIT_S))
        connections[-1].sendall(sent)
    return connections


def drawing(ancestor):
    """The processes of PDFium that a process started, or that lost their parent."""
    found = {}
    for stat in (entry / "stat" for entry in Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text()
            found[int(stat.parent.name)] = int(fields[1]), fields[0], command
    return [
        pid
        for pid, (_, state, command) in found.items()
        if "vlmkit_pdf" in command and state != "Z" and is_of(pid, ancestor, found)
    ]


def is_of(pid, ancestor, processes):
    while pid in processes and pid != ancestor:
        pid = processes[pid][0]
    return pid == ancestor


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_idle(pid):
    before = cpu_s(pid)
    time.sleep(0.5)
    return cpu_s(pid) - before < 0.1


def eventually(is_true):
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("num_renderers", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_hostile_documents_delay_no_other_tenant_and_end_with_their_requests(
    tmp_path, num_renderers
):
    with served(tmp_path, num_renderers) as (server, address, keys):
        connections = flood(address, keys["one"])
        assert eventually(lambda: drawing(server.pid))
        long = "word " * 3400  # of the length that renderers are for
        assert ask(address, keys["other"]) == 200
        assert ask(address, keys["other"], long) in (200, 400)  # it may be over the context
        assert drawing(server.pid)
        for connection in connections:
            connection.close()
        assert eventually(lambda: not drawing(server.pid))
        assert eventually(lambda: is_idle(server.pid))
        assert ask(address, keys["one"]) == 200

        connections = flood(address, keys["one"])
        assert eventually(lambda: drawing(server.pid))
        pids = drawing(server.pid)
        server.send_signal(signal.SIGTERM)
        assert server.wait(WAIT_S) == 0
        assert eventually(lambda: all(map(is_gone, pids)))
        for connection in connections:
            connection.close()


def test_a_server_that_is_killed_leaves_no_process_behind(tmp_path):
    with served(tmp_path, 1) as (server, address, keys):
        connections = flood(address, keys["one"])
        assert eventually(lambda: drawing(server.pid))
        pids = drawing(server.pid)
        server.kill()
        assert eventually(lambda: all(map(is_gone, pids)))
        for connection in connections:
            connection.close()
