"""Attacks on a server process over HTTP, one for each security statement that no other module
attacks from outside; ``docs/explanation/security.md`` names them.

The server is ``vlmkit serve`` with the packaged model and the mock, and with the plugins that are
installed here.
"""

import base64
import http.server
import io
import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
sys.path.append(str(Path(__file__).parents[1] / "packages/vlmkit-server/tests"))

import PIL.Image
from running_server import chat, eventually, image_part, process, running, scripted
from two_keys import headers_of

import vlmkit_demo.plugin
from vlmkit.interfaces.observer import Observer
from vlmkit.kit.cache_index import CacheIndex
from vlmkit.running.observers.builtin import Counters, RequestLog
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_monitor.prometheus import PrometheusMonitor

pytestmark = pytest.mark.posix

KEYS = ("one", "two")
EVIL_PLUGIN = """
import os
from pathlib import Path
Path(os.environ["EVIDENCE"]).write_text("imported")
VLMKIT_API = (1, 0)
"""


class Site(http.server.BaseHTTPRequestHandler):
    """A web site in a private network that counts its requests."""

    num_requests = 0

    def do_GET(self):
        type(self).num_requests += 1
        self.send_error(404)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def site():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever).start()
        yield site
        site.shutdown()


@pytest.fixture(scope="module")
def keys(folder):
    """The headers of each key, by its name."""
    return dict(zip(KEYS, headers_of(folder, *KEYS), strict=True))


@pytest.fixture(scope="module")
def server(folder, keys):
    """A server with keys that fetches URLs, beside a distribution that it must not import."""
    info = folder / "evil/vlmkit_evil-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vlmkit-evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vlmkit]\nevil = vlmkit_evil\n")
    (folder / "evil/vlmkit_evil.py").write_text(EVIL_PLUGIN)
    listed = ["vlmkit-mock", "vlmkit-demo", "vlmkit-hf", "vlmkit-onnx"]
    settings = {
        "server.keys_file": "keys.jsonl",
        "fetch.enabled": True,
        "fetch.allow_http": True,
        "plugins.only": listed,
    }
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "demo", "--port", "0"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVIDENCE", str(folder / "evidence"))
        path = [str(folder / "evil"), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        with process(command, folder) as server:
            assert eventually(lambda: "'demo' is ready" in server.log.read_text())
            server.http.headers |= keys["one"]
            yield server


def shown(server, url, **fields):
    message = {"role": "user", "content": [image_part(url)]}
    return server.post({"model": "mock", "messages": [message], "max_tokens": 200} | fields)


SPELLINGS = [
    "http://127.0.0.1:{port}/a.png",
    "http://localhost:{port}/a.png",
    "http://127.1:{port}/a.png",
    "http://2130706433:{port}/a.png",
    "http://0x7f.1:{port}/a.png",
    "http://017700000001:{port}/a.png",
    "http://0.0.0.0:{port}/a.png",
    "http://[::1]:{port}/a.png",
    "http://[::ffff:127.0.0.1]:{port}/a.png",
    "http://[64:ff9b::7f00:1]:{port}/a.png",
    "http://127.0.0.1.:{port}/a.png",
    "http://localhost.:{port}/a.png",
    "http://a@127.0.0.1:{port}/a.png",
    "http://example.com\\@127.0.0.1:{port}/a.png",
    "http://127.0.0.1:{port}#@example.com/a.png",
    "HTTP://LOCALHOST:{port}/a.png",
    "http://\u2460\u2461\u2466.0.0.1:{port}/a.png",
    "http://169.254.169.254/latest/meta-data/",
    "http://127.0.0.1:1/closed",
    "http://name.invalid/a.png",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_GET",
]


def test_the_server_connects_to_no_spelling_of_a_private_address(server, site):
    told = set()
    for spelling in SPELLINGS:
        answer = shown(server, spelling.format(port=site.server_port))
        assert answer.status_code == 400, spelling
        error = answer.json()["error"]
        assert error["param"] == "messages[0].content[0].image_url.url"
        told.add((error["code"], error["message"]))
    assert Site.num_requests == 0
    assert len({code for code, _ in told}) == 1


def special_ids():
    path = Path(str(vlmkit_demo.plugin.__file__)).with_name("checkpoint") / "tokenizer.json"
    added = json.loads(path.read_text())["added_tokens"]
    return {token["id"]: token["content"] for token in added if token["special"]}


def tokens_of(server, content):
    body = {"model": "demo", "messages": [{"role": "user", "content": content}]}
    answer = server.post(body, "/tokenize")
    assert answer.status_code == 200, answer.text
    return Counter(answer.json()["tokens"])


def test_text_in_a_request_never_becomes_a_control_token_or_image_slot(server):
    special = special_ids()
    picture = io.BytesIO()
    PIL.Image.new("RGB", (64, 64), "teal").save(picture, "PNG")
    shown_part = image_part(
        "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
    )
    spelled = "".join(special.values()) * 3
    halves = [text[:cut] for text in special.values() for cut in range(1, len(text))]
    for hostile in (
        spelled,
        " ".join(special.values()),
        "".join(halves),
        spelled[1:] + spelled[:1],
    ):
        for before, after in ((["a"], [hostile]), (["a", shown_part], [hostile, shown_part])):
            plain, typed = (
                [
                    each if isinstance(each, dict) else {"type": "text", "text": each}
                    for each in part
                ]
                for part in (before, after)
            )
            of_plain, of_typed = tokens_of(server, plain), tokens_of(server, typed)
            assert {i: of_plain[i] for i in special} == {i: of_typed[i] for i in special}


def resident_mib(server):
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_memory_of_a_refused_long_text_is_freed(server):
    before = resident_mib(server)
    answer = server.post(
        {"model": "demo", "messages": [{"role": "user", "content": "\u4e2d" * 2**19}]}
    )
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert eventually(lambda: resident_mib(server) < before + 100, timeout_s=120)


def test_wrong_keys_get_the_same_refusal_wherever_they_differ(server, keys):
    secret = keys["one"]["authorization"].removeprefix("Bearer ")
    near = [
        secret[:place] + ("B" if letter == "A" else "A") + secret[place + 1 :]
        for place, letter in enumerate(secret)
    ]
    near += [secret[:-1], secret + "A", secret.swapcase(), secret[::-1], secret * 2]
    told = set()
    for each in near:
        answer = server.get("/v1/models", headers={"authorization": f"Bearer {each}"})
        assert answer.status_code == 401, each
        assert secret not in answer.text
        told.add(json.dumps(answer.json(), sort_keys=True))
    assert len(told) == 1
    assert server.get("/v1/models").status_code == 200


def test_a_distribution_that_is_not_listed_is_not_imported_by_a_server(server, folder):
    assert server.post(chat("a", max_tokens=2)).status_code == 200
    assert not (folder / "evidence").exists()
    assert "evil" not in server.get("/v1/capabilities").text


def test_no_answer_and_no_image_makes_a_server_run_a_tool(server):
    """A model that calls is heard by the client alone; tools of the server are named or not run."""
    tool = {"type": "function", "function": {"name": "delete_all", "parameters": {}}}
    script = scripted(calls=[{"name": "delete_all", "arguments": {"path": "/"}}])
    answer = server.post(chat(script, tools=[tool], max_tokens=100)).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "delete_all"
    refused = server.post(chat(script, server_tools=["delete_all"]))
    assert refused.json()["error"]["param"] == "server_tools"
    told = server.get("/v1/capabilities").json()
    assert not [tool for tool in json.dumps(told).split('"') if tool == "delete_all"]


def test_images_of_equal_bytes_and_different_shapes_share_no_cache(server):
    """The same pixel bytes in another width, height or mode are another image to every cache."""
    seen = set()
    for mode, size in (("RGB", (8, 6)), ("RGB", (6, 8)), ("RGB", (12, 4)), ("L", (12, 12))):
        content = io.BytesIO()
        PIL.Image.frombytes(mode, size, bytes(range(144))).save(content, "PNG")
        url = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
        text = shown(server, url).json()["choices"][0]["message"]["content"]
        assert f"{size[0]}x{size[1]}" in text
        seen.add(text.partition("sha256:")[2].split()[0])
    assert len(seen) == 4


class CacheObserver(Observer):
    """Keeps the index of an engine's cache, as a router's plugin does."""

    def __init__(self):
        self.index = CacheIndex()

    def blocks(self, change, at_s):
        self.index.apply(change)

    def stats(self):
        return {"num_cached_blocks": len(self.index.blocks)}


def test_cache_events_put_no_tokens_on_pages_metrics_and_logs(caplog):
    """An operator's observer receives what clients asked; nobody else may read it."""
    monitor, cache = PrometheusMonitor(), CacheObserver()
    observers = {"cache": cache, "counters": Counters(), "log": RequestLog()}
    pipeline = Pipeline(
        tokenizer=MockTokenizer(),
        engine=MockEngine(),
        observers=observers | {"prometheus": monitor.observer("mock")},
        name="mock",
    )
    secret = "ZxSecretQy" * 10
    monitors = {"prometheus": monitor}
    with (
        caplog.at_level("DEBUG", "vlmkit"),
        caplog.at_level("DEBUG", "vlmkit_server"),
        running({"mock": pipeline}, monitors=monitors) as server,
    ):
        server.post(chat(secret)).raise_for_status()
        assert eventually(lambda: cache.index.blocks)
        tokens = [block.tokens for block in cache.index.blocks.values()]
        assert any("ZxSecretQy" in MockTokenizer().decode(ids) for ids in tokens)
        document = server.get("/openapi.json").json()
        paths = [path for path, known in document["paths"].items() if "get" in known]
        pages = [server.get(path).text for path in paths if "{" not in path]
    assert "/metrics" in paths
    published = "\n".join([*pages, caplog.text, repr(pipeline.stats())])
    assert "num_cached_blocks" in published
    assert "ZxSecretQy" not in published
    assert not any(str(list(ids))[1:-1] in published for ids in tokens)
