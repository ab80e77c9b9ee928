"""How many second turns of conversations vllm-router sends to the server of the first turn.

    python benchmarks/cache_aware_router.py /path/to/vllm-router

Starts two servers with the monitor ``kv_events`` and the router in front of them, on loopback. The
router is installed in an environment of its own: ``pip install vllm-router``.
"""

import argparse
import base64
import contextlib
import io
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
from PIL import Image

CONFIG = """
[monitors]
use = ["prometheus", "kv_events"]

[monitors.kv_events]
endpoint = "tcp://127.0.0.1:{events}"
replay_endpoint = "tcp://127.0.0.1:{replay}"
"""
START_S = 300.0
EVENTS_S = 2.0  # for events to reach the router: an idle engine, one step


def free_ports(num: int) -> list[int]:
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(num)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


@contextlib.contextmanager
def running(command: list[str], log: Path, url: str) -> Iterator[None]:
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            deadline = time.monotonic() + START_S
            while True:
                with contextlib.suppress(OSError):
                    read(url)
                    break
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(60)


def num_answered(server: str) -> int:
    found = re.search(
        r'^vlmkit_requests_total\{model="demo"\} (\S+)', read(f"{server}/metrics"), re.MULTILINE
    )
    return int(float(found[1])) if found else 0


def first_turn(number: int, *, has_image: bool) -> list[dict[str, Any]]:
    text = f"Number {number}: please look at all of this and say in a few words what it is about."
    if not has_image:
        return [{"role": "user", "content": text}]
    content = io.BytesIO()
    Image.new("RGB", (96, 64), (number * 20, 99, 255 - number * 20)).save(content, "PNG")
    url = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


def measure(router: str, servers: list[str], *, has_image: bool, num: int = 10) -> tuple[int, int]:
    """Return how many second turns reached the first turn's server, and their cached tokens.

    The first turns go to the servers themselves, half to each in random order, because a router
    sends the first requests of an idle fleet to any server. The second turns go to the router, in
    another order.
    """
    chance = random.Random(7)

    def asked(url: str, messages: list[dict[str, Any]]) -> tuple[int, str, int]:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
        before = [num_answered(server) for server in servers]
        answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=16)
        while (after := [num_answered(server) for server in servers]) == before:
            time.sleep(0.05)  # observers count a moment later
        (server,) = [i for i in range(len(servers)) if after[i] > before[i]]
        cached = answer.usage.prompt_tokens_details.cached_tokens
        return server, answer.choices[0].message.content, cached

    conversations = [first_turn(number, has_image=has_image) for number in range(num)]
    homes = [number % 2 for number in range(num)]
    chance.shuffle(homes)
    texts = [asked(servers[i], each)[1] for i, each in zip(homes, conversations, strict=True)]
    time.sleep(EVENTS_S)
    same = cached = 0
    for number in chance.sample(range(num), num):
        more = [
            {"role": "assistant", "content": texts[number]},
            {"role": "user", "content": "And what else can you say?"},
        ]
        server, _, num_cached = asked(router, conversations[number] + more)
        same += server == homes[number]
        cached += num_cached
    return same, cached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("router", help="the program vllm-router")
    parser.add_argument("--policies", default="kv_aware,round_robin")
    options = parser.parse_args()
    for policy in options.policies.split(","):
        for has_image in (False, True):
            with contextlib.ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                result = run(options.router, policy, folder, stack, has_image=has_image)
            print(json.dumps({"policy": policy, "images": has_image, **result}))


def run(
    program: str, policy: str, folder: Path, stack: contextlib.ExitStack, *, has_image: bool
) -> dict[str, Any]:
    ports = free_ports(8)
    servers, sources = [], []
    for number in (0, 1):
        port, events, replay = ports[number * 3 : number * 3 + 3]
        config = folder / f"{number}.toml"
        config.write_text(CONFIG.format(events=events, replay=replay))
        server = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "vlmkit", "serve", "demo", "--config", str(config)]
        log = folder / f"server-{number}"
        stack.enter_context(running([*command, "--port", str(port)], log, f"{server}/readyz"))
        servers.append(server)
        sources += ["--kv-event-source", f"{server}=tcp://127.0.0.1:{events}"]
        sources += ["--kv-event-replay-source", f"{server}=tcp://127.0.0.1:{replay}"]
    router = f"http://127.0.0.1:{ports[6]}"
    command = [
        *(program, "--policy", policy, "--port", str(ports[6])),
        *("--prometheus-port", str(ports[7]), "--worker-urls", *servers),
        *("--worker-startup-check-interval", "1"),
    ]
    if policy == "kv_aware":
        command += [*sources, "--kv-event-block-size", "16", "--kv-event-model", "demo"]
    stack.enter_context(running(command, folder / "router", f"{router}/health"))
    same, cached = measure(router, servers, has_image=has_image)
    return {"second_turns_on_the_first_server": same, "of": 10, "cached_tokens": cached}


if __name__ == "__main__":
    main()
