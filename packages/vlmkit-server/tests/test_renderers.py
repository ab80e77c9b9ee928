"""A server with renderer processes, and hostile images against them."""

import base64
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import PIL.Image
import pytest
from process_tree import children_of, descendants_of, pid_of_pipeline
from running_server import chat, eventually, http_request, image_part, image_url, process, scripted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")

SIDE = 7000


def data_url(content):
    return "data:image/png;base64," + b64encode(content).decode()


def bomb(side=SIDE, kind="PNG", mode="1", **options):
    """Return an image of a few thousand bytes and 49 million pixels."""
    file = io.BytesIO()
    PIL.Image.new(mode, (side, side)).save(file, kind, **options)
    return data_url(file.getvalue())


LARGE_FILES = {
    "png": {},
    "png rgb": {"mode": "RGB"},
    "png rgba": {"mode": "RGBA"},
    "jpeg": {"kind": "JPEG", "mode": "RGB"},
    "progressive jpeg": {"kind": "JPEG", "mode": "RGB", "progressive": True, "subsampling": 0},
    "webp": {"kind": "WEBP", "mode": "RGB", "method": 0},
    "webp alpha": {"kind": "WEBP", "mode": "RGBA", "method": 0},
    "lossless webp": {"kind": "WEBP", "mode": "RGB", "method": 0, "lossless": True},
    "gif": {"kind": "GIF", "mode": "P"},
    "bmp": {"kind": "BMP"},
    "tiff": {"kind": "TIFF", "mode": "RGB", "compression": "tiff_lzw"},
    "tiff jpeg": {"kind": "TIFF", "mode": "RGB", "compression": "jpeg"},
    "tiff float": {"kind": "TIFF", "mode": "F", "compression": "tiff_lzw"},
    "avif": {"kind": "AVIF", "mode": "RGB", "speed": 10},
    "avif alpha": {"kind": "AVIF", "mode": "RGBA", "speed": 10},
}


BOMB = bomb()


def image_chat(*urls, **fields):
    parts = [image_part(url) for url in urls]
    return chat(**fields) | {"messages": [{"role": "user", "content": parts}]}


@contextlib.contextmanager
def served(folder, num_renderers, *, address_space_kb=None, **settings):
    """Run a server in front of the mock."""
    own = {} if num_renderers is None else {"server.num_renderers": num_renderers}
    given = {"server.port": 0} | own | settings
    assigned = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", *assigned]
    if address_space_kb is not None:
        command = ["bash", "-c", f'ulimit -v {address_space_kb}; exec "$@"', "x", *command]
    with process(command, folder) as server:
        assert eventually(lambda: server.status() == 200, timeout_s=120), server.log.read_text()
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("renderers"), 2) as started:
        yield started


PUBLIC = {"server.host": "0.0.0.0", "server.allow_public_without_key": "true"}
BOUND = """
import sys

from vlmkit.plugins.hookspecs import hookimpl
from vlmkit_mock.tokenizer import MockTokenizer

VLMKIT_API = (1, 0)


def build(context):
    if "renderer" in sys.argv[0]:
        raise RuntimeError("there is no engine beside this")
    return MockTokenizer()


@hookimpl
def vlmkit_register_tokenizers(registry):
    registry.add("bound", build)
"""


def test_a_public_server_uses_renderers_and_warns_about_unset_limits(tmp_path):
    with served(tmp_path, None, **PUBLIC) as server:
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert len(children(server)) == 2
        assert answer_text(server, image_chat(image_url())) is not None
        log = server.log.read_text()
    for name in (
        *("plugins.only", "server.limits.address", "server.allowed_hosts", "server.access_log"),
        *("server.audit_log", "pipeline.max_output_tokens"),
    ):
        assert len([line for line in log.splitlines() if name in line]) == 1, name


def test_settings_of_the_operator_override_defaults_of_public_addresses(tmp_path):
    settings = PUBLIC | {
        "plugins.only": '["vlmkit-mock"]',
        "server.limits.address": '["requests=60/minute"]',
        "server.allowed_hosts": '["0.0.0.0"]',
        "server.access_log": str(tmp_path / "access"),
        "server.audit_log": str(tmp_path / "audit"),
        "pipeline.max_output_tokens": 100,
    }
    with served(tmp_path, 0, **settings) as server:
        assert children(server) == []
        log = [line for line in server.log.read_text().splitlines() if "WARNING" in line]
    assert len(log) == 2, log
    assert "server.keys_file is not set" in log[0]
    assert "server.num_renderers is 0" in log[1]


def test_a_model_without_renderers_is_served_unless_num_renderers_is_set(tmp_path):
    (tmp_path / "bound.py").write_text(BOUND)
    settings = {"plugins.files": f'["{tmp_path / "bound.py"}"]', "tokenizer.use": "bound"}
    with served(tmp_path, None, **PUBLIC, **settings) as server:
        assert children(server) == []
        assert "no renderer process can be started" in server.log.read_text()
    given = settings | {"server.port": 0, "server.num_renderers": 1}
    assigned = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    asked_for = subprocess.run(
        [sys.executable, "-m", "vlmkit", "serve", "mock", *assigned],
        capture_output=True,
        check=False,
        text=True,
    )
    assert asked_for.returncode == 1
    assert "could not be built" in asked_for.stderr


def post(server, body, path="/v1/chat/completions"):
    headers = {"content-type": "application/json"}
    return server.http.post(f"{server.url}{path}", content=json.dumps(body), headers=headers)


def answer_text(server, body):
    answer = post(server, body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def code(answer):
    return answer.json()["error"]["code"]


def children(server):
    """Return the renderers of a server, without its constraint worker."""
    return children_of(pid_of_pipeline(server), "vlmkit.assembly.renderer")


def all_processes(server):
    """Return the server's process, its renderers, and the decoders of both."""
    return [server.process.pid, *descendants_of(server.process.pid)]


def cpu_s(pids):
    """Return the CPU time of processes; a process that ended has none."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def is_idle(server):
    """Return whether both renderers run and use no CPU time for a while."""
    pids = children(server)
    before = cpu_s(pids)
    time.sleep(0.3)
    return len(pids) == 2 and children(server) == pids and cpu_s(pids) == before


def is_at_work(server):
    pids = children(server)
    before = cpu_s(pids)
    time.sleep(0.05)
    return cpu_s(pids) > before


def descriptors(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def shared_bytes(pid):
    """Return the size of the shared memory of a process."""
    links = Path(f"/proc/{pid}/fd").iterdir()
    return sum(link.stat().st_size for link in links if "memfd" in str(link.readlink()))


def test_answers_of_renderers_equal_those_of_threads(server, tmp_path):
    wide, broken = image_url(300, 20, kind="JPEG"), data_url(b"\x89PNG\r\n\x1a\nrubbish")
    cut = image_url(64, 64)[:-60]
    bodies = [
        image_chat(image_url(), wide),
        image_chat(wide, wide),
        chat("x" * 20_000),
        image_chat(broken),
        image_chat(image_url(), cut[: len(cut) // 4 * 4]),
        image_chat(*[image_url()] * 40),
        image_chat(data_url(b"GIF89a" + bytes(9))),
        chat("x" * 40_000),
        {"model": "mock", "prompt": "x" * 20_000},
    ]
    paths = ["/v1/chat/completions"] * 8 + ["/v1/completions"]

    def answered(by, body, path):
        answer = post(by, body, path)
        data = answer.json()
        return answer.status_code, data.get("error") or (data["choices"], data["usage"])

    with served(tmp_path, 0) as plain:
        assert not children(plain)
        for body, path in zip(bodies, paths, strict=True):
            assert answered(server, body, path) == answered(plain, body, path)
    assert len(children(server)) == 2


def test_a_renderer_killed_at_work_fails_only_its_request_and_is_replaced(server):
    streamed = server.stream(scripted(text="word ", tokens=400, latency_s=0.005))
    with ThreadPoolExecutor(1) as attackers:
        pending = attackers.submit(post, server, image_chat(BOMB))
        assert eventually(lambda: is_at_work(server))
        for pid in children(server):
            os.kill(pid, signal.SIGKILL)
        answer = pending.result()
    assert (answer.status_code, code(answer)) == (503, "prompt_not_made")
    assert int(answer.headers["retry-after"]) > 0
    assert sum(len(chunk.choices[0].delta.content or "") for chunk in streamed) >= 400
    assert answer_text(server, image_chat(image_url(9, 7))).startswith("image 1: 9x7")
    assert eventually(lambda: len(children(server)) == 2)


def test_tools_with_integers_over_64_bits_reach_a_renderer(server):
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "minimum": -(10**60)}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    answer = post(server, image_chat(image_url(9, 7), tools=[tool], tool_choice="none"))
    assert answer.status_code == 200, answer.text


def test_an_idle_renderer_that_is_killed_fails_no_request(server):
    assert eventually(lambda: len(children(server)) == 2)
    pids = children(server)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not set(pids) & set(children(server)))
    assert eventually(lambda: is_idle(server))
    assert answer_text(server, image_chat(image_url(9, 7))).startswith("image 1: 9x7")


def test_a_disconnect_stops_the_work_of_a_renderer(server):
    """Eight large images whose clients disconnect are not decoded to the end."""
    assert eventually(lambda: is_idle(server))
    host, port = server.url.removeprefix("http://").split(":")
    attackers = [socket.create_connection((host, int(port))) for _ in range(8)]
    for attacker in attackers:
        attacker.sendall(http_request(image_chat(*[BOMB] * 4)))
    assert eventually(lambda: is_at_work(server))
    for attacker in attackers:
        attacker.close()
    assert eventually(lambda: is_idle(server))
    assert answer_text(server, image_chat(image_url(9, 7))).startswith("image 1: 9x7")


def test_requests_leave_no_descriptors_shared_memory_or_processes(server):
    """Descriptors, shared memory and processes are the same as before."""
    answer_text(server, image_chat(image_url(300, 200)))
    assert eventually(lambda: is_idle(server))
    pids = [server.process.pid, pid_of_pipeline(server), *children(server)]
    before = [descriptors(pid) for pid in pids]
    with ThreadPoolExecutor(8) as clients:
        bodies = [image_chat(image_url(100 + n, 50), image_url(8, 8)) for n in range(40)]
        assert all(answer.status_code == 200 for answer in clients.map(post, [server] * 40, bodies))
    assert eventually(lambda: [descriptors(pid) for pid in pids] == before)
    assert [server.process.pid, pid_of_pipeline(server), *children(server)] == pids
    assert all(shared_bytes(pid) == 0 for pid in pids)


def resident_bytes(pids):
    """Return the memory of processes; a process that ended has none."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def peak_bytes(server):
    """Yield a list whose last item becomes the peak memory of all processes."""
    seen, is_over = [0], threading.Event()

    def look():
        while not is_over.wait(0.005):
            seen.append(max(seen[-1], resident_bytes(all_processes(server))))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        is_over.set()
        looking.join()


@pytest.mark.parametrize("num_renderers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_twelve_decompression_bombs_under_a_memory_limit_end_no_process(tmp_path, num_renderers):
    """Under 3 GiB, each request is answered or refused with 503, and another client's stream goes
    on."""
    check_twelve(tmp_path, num_renderers, BOMB, 600_000_000, address_space_kb=3 * 2**20)


@pytest.mark.slow
@pytest.mark.parametrize("num_renderers", [0, 1, 2])
@pytest.mark.parametrize("kind", LARGE_FILES)
def test_twelve_large_images_of_any_format_take_less_than_a_gibibyte(tmp_path, kind, num_renderers):
    check_twelve(tmp_path, num_renderers, bomb(**LARGE_FILES[kind]), 2**30)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE_FILES)
def test_large_images_under_a_memory_limit_are_not_reported_as_broken(tmp_path, kind):
    check_twelve(tmp_path, 0, bomb(**LARGE_FILES[kind]), 2**30, address_space_kb=3 * 2**20)


@pytest.mark.slow
@pytest.mark.parametrize("num_renderers", [0, 2])
def test_twelve_large_images_in_file_parts_take_less_than_a_gibibyte(tmp_path, num_renderers):
    """Their sizes are unknown until a renderer opens them."""
    url = bomb(**LARGE_FILES["webp"])
    check_twelve(tmp_path, num_renderers, url, 2**30, show=file_chat)


def file_chat(url):
    part = {"type": "file", "file": {"file_data": url, "filename": "x.webp"}}
    return chat() | {"messages": [{"role": "user", "content": [part]}]}


def check_twelve(folder, num_renderers, url, most_bytes, *, show=image_chat, **limits):
    with served(folder, num_renderers, **limits) as server:
        streamed = server.stream(scripted(text="word ", tokens=300, latency_s=0.01))
        with peak_bytes(server) as peak, ThreadPoolExecutor(12) as attackers:
            answers = list(attackers.map(post, [server] * 12, [show(url)] * 12))
        for answer in answers:
            assert answer.status_code == 200 or (
                answer.status_code == 503 and code(answer) in ("out_of_memory", "prompt_not_made")
            ), answer.text
        assert peak[-1] < most_bytes
        assert sum(len(chunk.choices[0].delta.content or "") for chunk in streamed) >= 300
        assert answer_text(server, image_chat(image_url(9, 7))).startswith("image 1: 9x7")
        assert server.status() == 200


def test_memory_is_released_after_large_broken_images(tmp_path):
    """Errors used to hold the decoded pixels, 200 MB each, until garbage collection."""
    whole = base64.b64decode(bomb(mode="RGB").partition(",")[2])
    cut = data_url(whole[: len(whole) * 2 // 3])
    with served(tmp_path, 0) as server:
        answer_text(server, image_chat(image_url(9, 7)))
        pids = [pid_of_pipeline(server)]
        before = resident_bytes(pids)
        for _ in range(3):
            answer = post(server, image_chat(cut))
            assert (answer.status_code, code(answer)) == (400, "invalid_image")
        assert eventually(lambda: resident_bytes(pids) < before + 50_000_000)


def test_a_renderer_over_its_memory_limit_fails_the_request(tmp_path):
    with served(tmp_path, 1, **{"server.renderer_memory_bytes": 2**28}) as server:
        pids = children(server)
        answer = post(server, image_chat(BOMB, bomb(SIDE - 1)))
        assert (answer.status_code, code(answer)) == (503, "out_of_memory")
        assert answer_text(server, image_chat(image_url(9, 7))).startswith("image 1: 9x7")
        assert children(server) == pids


def test_a_renderer_over_its_time_limit_is_replaced(tmp_path):
    with served(tmp_path, 1, **{"pipeline.prepare_timeout_s": 0.5}) as server:
        answer = post(server, image_chat(BOMB, bomb(SIDE - 1), bomb(SIDE - 2)))
        assert (answer.status_code, code(answer)) == (503, "prompt_not_made")
        assert "longer than 0.5 s" in answer.json()["error"]["message"]
        assert eventually(lambda: post(server, image_chat(image_url())).status_code == 200)


def test_a_killed_server_leaves_no_renderer_behind(tmp_path):
    with served(tmp_path, 2) as server:
        pids = children(server)
        assert len(pids) == 2

        def ask():
            with contextlib.suppress(httpx2.HTTPError):
                post(server, image_chat(BOMB))

        attacker = threading.Thread(target=ask)
        attacker.start()
        assert eventually(lambda: is_at_work(server))
        server.process.kill()
        attacker.join()
        assert eventually(lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in pids))


def test_a_server_that_stops_ends_its_renderers(tmp_path):
    with served(tmp_path, 2) as server:
        pids = children(server)
        server.process.terminate()
        server.process.wait(60)
        assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        assert "Traceback" not in server.log.read_text()
