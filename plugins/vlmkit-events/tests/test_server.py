"""A real server publishes the caches of its models, and a subscriber follows them."""

import base64
import io
import json
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import msgspec
import pytest
import zmq
from PIL import Image
from subscriber import free_ports, subscribers

pytestmark = pytest.mark.posix

MODELS = {
    "plain": "{}",
    "twice": '{ use = "replicas", num_replicas = 2 }',
    "child": '{ use = "subprocess" }',
}
BLOCK_TOKENS = 16


@pytest.fixture(scope="module")
def addresses():
    """The addresses of each model: of live events and of past ones."""
    ports = free_ports(len(MODELS) * 2)
    found = {}
    for number, name in enumerate(MODELS):
        events, replay = ports[2 * number : 2 * number + 2]
        found[name] = f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}"
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory, addresses):
    """Return the process, its address and a client."""
    folder = tmp_path_factory.mktemp("server")
    config = '[monitors]\nuse = ["prometheus", "kv_events"]\n'
    config += "[engine]\ncapacity_tokens = 4096\nmax_sequence_tokens = 2048\n"
    for name, (events, replay) in addresses.items():
        config += f'[monitors.kv_events.models.{name}]\nendpoint = "{events}"\n'
        config += f'replay_endpoint = "{replay}"\n'
    for name, runner in MODELS.items():
        config += f'[[models]]\nmodel = "mock"\nname = "{name}"\n'
        config += f"runner = {runner}\n" if runner != "{}" else ""
    (folder / "vlmkit.toml").write_text(config)
    log = folder / "log"
    command = [sys.executable, "-m", "vlmkit", "serve", "--port", "0"]
    with (
        log.open("wb") as file,
        subprocess.Popen([*command, "--config", folder / "vlmkit.toml"], stderr=file) as process,
        httpx2.Client(trust_env=False, timeout=300) as http,
    ):
        try:
            while log.read_text().count(" is ready\n") < len(MODELS):
                assert process.poll() is None, log.read_text()
                time.sleep(0.02)
            url = re.search(r"listening on (\S+)", log.read_text())
            assert url is not None
            yield process, url[1], http
        finally:
            process.kill()
    assert "Traceback" not in log.read_text(), log.read_text()


def message(text, color=None):
    parts = [{"type": "text", "text": text}]
    if color is not None:
        content = io.BytesIO()
        Image.new("RGB", (24, 16), color).save(content, "PNG")
        url = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
        parts.insert(0, {"type": "image_url", "image_url": {"url": url}})
    return [{"role": "user", "content": parts}]


def ask(server, path, model, messages, **fields):
    _, url, http = server
    body = {"model": model, "messages": messages, "max_tokens": 2} | fields
    answer = http.post(f"{url}/v1/chat/completions{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chain_of(index, token_ids, digests=()):
    """Return how many first tokens of a prompt an index holds, as a router finds them."""
    parent, at = None, 0
    while True:
        block = tuple(token_ids[at : at + BLOCK_TOKENS])
        found = [
            key
            for key, (before, tokens, extra_keys) in index.items()
            if before == parent and tokens == block and set(extra_keys or ()) <= set(digests)
        ]
        if not found:
            return at
        parent, at = found[0], at + BLOCK_TOKENS


@pytest.mark.parametrize("model", ["plain", "child"])
def test_a_subscriber_with_gaps_rebuilds_the_index_and_predicts_cached_tokens(
    server, addresses, model
):
    losing = random.Random(1)
    with subscribers() as connect:
        reader = connect(*addresses[model], loses=lambda _: losing.random() < 0.3)
        for number in range(60):
            text = f"{'abc'[number % 3] * 150} {number} {'xy' * number * 3}"
            color = ("red", "blue", None)[number % 3]
            ask(server, "", model, message(text, color), cache_salt=("", "s")[number % 2])
        exact = connect(*addresses[model])
        text, color = "a" * 150, "red"
        rendered = ask(server, "/render", model, message(text, color))
        digests = rendered["features"]["mm_hashes"]["image"]
        first = ask(server, "", model, message(text, color))["usage"]
        cached = first["prompt_tokens_details"]["cached_tokens"]
        assert cached > BLOCK_TOKENS
        _wait_for_chain(exact, rendered["token_ids"], digests, cached)
        reader.read(exact.last)
        exact.read(reader.last)
        assert reader.index == exact.index
        assert reader.num_gaps
        assert any(extra_keys for *_, extra_keys in reader.index.values())
        assert chain_of(reader.index, rendered["token_ids"], digests) >= cached


def _wait_for_chain(reader, token_ids, digests, num_tokens):
    deadline = time.monotonic() + 120
    while chain_of(reader.index, token_ids, digests) < num_tokens:
        assert time.monotonic() < deadline
        reader.recover()


def test_each_replica_has_a_stream_of_its_own(server, addresses):
    long = json.dumps({"mock": {"text": "z", "tokens": 300}})
    with ThreadPoolExecutor(8) as together:  # a replica alone answers requests in turn
        for number in range(16):
            asked = message(f"{number} {'z' * 200} {long}")
            together.submit(ask, server, "", "twice", asked, max_tokens=300)
    with subscribers() as connect:
        readers = []
        for rank in (0, 1):
            moved = [
                re.sub(r"\d+$", lambda port, rank=rank: str(int(port[0]) + rank), each)
                for each in addresses["twice"]
            ]
            readers.append(connect(*moved))
        deadline = time.monotonic() + 120
        while not all(reader.index for reader in readers):
            assert time.monotonic() < deadline
            for reader in readers:
                reader.recover()
        assert [reader.ranks for reader in readers] == [{0}, {1}]
        assert not readers[0].index.keys() & readers[1].index.keys()


def test_metrics_show_what_was_published_and_no_token_of_it(server):
    ask(server, "", "plain", message("a secret word " * 20))
    _, url, http = server
    page = http.get(f"{url}/metrics").text
    found = re.findall(
        r'vlmkit_observer_stat\{model="plain",observer="monitors.kv_events",stat="(\w+)"\} (\S+)',
        page,
    )
    numbers = {name: float(value) for name, value in found}
    assert numbers["num_batches"] > 0
    assert numbers["num_batches_dropped"] == 0
    assert {"num_blocks", "num_replays", "num_bad_requests"} <= numbers.keys()
    assert "secret" not in page


def test_the_end_of_a_server_reaches_its_subscribers(server, addresses):
    process, *_ = server
    with zmq.Context() as context, context.socket(zmq.SUB) as live:
        live.connect(addresses["plain"][0])
        live.subscribe(b"")
        deadline = time.monotonic() + 120
        while not live.poll(200):  # the connection is there
            assert time.monotonic() < deadline
            ask(server, "", "plain", message(f"{time.monotonic()} {'q' * 100}"))
        process.send_signal(signal.SIGTERM)
        events = []
        while process.poll() is None or live.poll(1000):
            assert time.monotonic() < deadline
            if live.poll(100):
                events += msgspec.msgpack.decode(live.recv_multipart()[2])[1]
        assert process.wait(120) == 0
        assert events[-1] == {"type": "AllBlocksCleared"}


def test_addresses_that_are_refused_end_the_start_of_a_server(tmp_path: Path):
    config = tmp_path / "vlmkit.toml"
    config.write_text(
        'model = "mock"\n[monitors]\nuse = ["kv_events"]\n'
        '[monitors.kv_events]\nendpoint = "tcp://0.0.0.0:5557"\n'
    )
    command = [sys.executable, "-m", "vlmkit", "serve", "--port", "0", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode
    assert "not a loopback address, and events contain prompts" in ended.stderr
    assert json.dumps("Traceback") not in ended.stderr
