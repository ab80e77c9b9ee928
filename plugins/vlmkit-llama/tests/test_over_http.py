"""A server process whose library ends at random moments, or reads mutated projectors."""

import base64
import io
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence as Seq
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import zoo

sys.path.append(str(Path(__file__).parents[3] / "packages/vlmkit-server/tests"))

from process_tree import children_of
from running_server import Process, eventually, http_client, process

pytestmark = [
    pytest.mark.torch,
    pytest.mark.server,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc"),
]

Pair = Callable[[str], Path]
RUNNER = "vlmkit.assembly.runner_process"
NUM_CLIENTS, NUM_COMPARED = 4, 4
WAIT_S = 300
LOST, ABSENT = "model_failed", "model_loading"
"""Codes of requests whose engine ended, and of those that came before it was back."""


def shown(number: int) -> str:
    written = io.BytesIO()
    zoo.picture(number % 9, 60, 40).save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def chat(number: int, *, has_image: bool, **fields: Any) -> dict[str, Any]:
    image = [{"type": "image_url", "image_url": {"url": shown(number)}}] * has_image
    text = {"type": "text", "text": f"Tell me more of {number}."}
    message = {"role": "user", "content": [*image, text]}
    return {"model": "model.gguf", "messages": [message], "temperature": 0, **fields}


@contextmanager
def served(folder: Path, *arguments: str, settings: Seq[str]) -> Iterator[Process]:
    """Serve models, by a process of its own."""
    own = ("engine.use=llama", "engine.cache_tokens=2048", "engine.num_threads=1", "server.port=0")
    command = [sys.executable, "-m", "vlmkit", "serve", *arguments]
    for setting in (*own, "engine.cache_dtype=f32", *settings):
        command += ["--set", setting]
    with process(command, folder) as server:
        yield server


class Watch:
    """Asks whether a server is ready, again and again.

    Attributes:
        num_asked: how often.
        slowest_s: the longest time until an answer.
        problems: questions without an answer of 200 or 503.
    """

    def __init__(self, url: str) -> None:
        self.num_asked, self.slowest_s = 0, 0.0
        self.problems: list[object] = []
        self._url, self._has_ended = f"{url}/readyz", threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def _run(self) -> None:
        with http_client() as http:
            while not self._has_ended.wait(0.1):
                began_s = time.monotonic()
                try:
                    status = http.get(self._url, timeout=60).status_code
                except httpx2.HTTPError as error:
                    self.problems.append(error)
                    continue
                if status not in (200, 503):
                    self.problems.append(status)
                self.num_asked += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)


class Client:
    """Sends requests until it is stopped; counts how they end.

    No two are equal: a request during which the engine ends again and again is quarantined.

    Args:
        server: the server.
        first: the number of the first request; others count up by :data:`NUM_CLIENTS`.

    Attributes:
        ends: how many requests ended in which way.
        answers: the texts of finished requests, by their numbers.
    """

    def __init__(self, server: Process, first: int) -> None:
        self.ends: Counter[str] = Counter()
        self.answers: dict[int, str] = {}
        self._url, self._numbers = server.url, itertools.count(first, NUM_CLIENTS)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with http_client() as http:
            while not self._is_stopped.is_set():
                number = next(self._numbers)
                end = self._streamed(http, number, asked(number) | {"stream": True})
                self.ends[end] += 1
                if end == ABSENT:
                    time.sleep(0.5)

    def _streamed(self, http: httpx2.Client, number: int, body: dict[str, Any]) -> str:
        text = ""
        with http.stream("POST", f"{self._url}/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                return str(json.loads(answer.read())["error"]["code"])
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    self.answers[number] = text
                    return "finished"
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return str(event["error"]["code"])
                text += "".join(c["delta"].get("content") or "" for c in event["choices"])
        return "cut"


def asked(number: int) -> dict[str, Any]:
    fields = {"ignore_eos": True, "max_tokens": 20 + 20 * (number % 4)}
    return chat(number, has_image=bool(number % 2), **fields)


def answers(server: Process, numbers: Iterable[int]) -> dict[int, str]:
    found = {}
    for number in numbers:
        answer = server.post(asked(number))
        assert answer.status_code == 200, answer.text
        found[number] = answer.json()["choices"][0]["message"]["content"]
    return found


def abort_at_random_moments(file: Path, folder: Path, num: int) -> None:
    dice, before = random.Random(num), range(NUM_COMPARED)
    settings = ("runner.max_restarts=1000", "runner.stable_s=0.01")
    with served(folder, str(file), settings=settings) as server:
        assert eventually(lambda: server.status() == 200)
        expected = answers(server, before)
        pids = set()
        with Watch(server.url) as watch:
            clients = [Client(server, NUM_COMPARED + each) for each in range(NUM_CLIENTS)]
            for _ in range(num):
                time.sleep(dice.random())
                (pid,) = children_of(server.process.pid, RUNNER)
                pids.add(pid)
                os.kill(pid, signal.SIGABRT)
                assert eventually(lambda gone=pid: is_back(server, gone), timeout_s=WAIT_S)
            for client in clients:
                client.stop()
        assert len(pids) == num
        assert answers(server, before) == expected
        for client in clients:
            some = dict(list(client.answers.items())[-NUM_COMPARED:])
            assert answers(server, some) == some
        check_ends(clients, watch, num)
        assert eventually(lambda: is_idle(server), timeout_s=60), server.get("/readyz").json()


def is_back(server: Process, gone: int) -> bool:
    """Return whether another process runs the model; first, the server must notice the end."""
    children = children_of(server.process.pid, RUNNER)
    return bool(children) and gone not in children and server.status() == 200


def is_idle(server: Process) -> bool:
    """Return whether nothing runs, waits or holds a resource."""
    readiness = server.get("/readyz").json()
    model = readiness["models"]["model.gguf"]
    used = [resource["total"] for name, resource in readiness["resources"].items() if name != OWN]
    return not (model["num_running"] or model["num_waiting"] or any(used))


OWN = "connections"
"""The resource that the question itself holds."""


def check_ends(clients: list[Client], watch: Watch, num: int) -> None:
    ends = sum((client.ends for client in clients), Counter[str]())
    print(f"{num} aborts: {dict(ends)}; {watch.num_asked} probes, slowest {watch.slowest_s:.2f} s")
    assert not watch.problems
    assert set(ends) <= {"finished", LOST, ABSENT}, ends
    assert ends[LOST] <= num * NUM_CLIENTS, "one error for each running request"
    assert ends["finished"] >= num / 2


@pytest.mark.slow
@pytest.mark.parametrize("num", [2, pytest.param(100, marks=pytest.mark.timeout(0))])
def test_a_server_outlives_aborts_at_random_moments(num: int, pair: Pair, tmp_path: Path) -> None:
    abort_at_random_moments(pair("smolvlm") / "model.gguf", tmp_path, num)


# Mutated projectors


TWO_MODELS = """
[[models]]
model = "{steady}"
name = "steady"

[[models]]
model = "{changed}"
name = "changed"
load = "request"

[server.fleet]
manage = true
"""


def mutated(content: bytes, dice: random.Random) -> bytes:
    """Return a file that was cut, or with a changed bit in its header."""
    if dice.random() < 0.2:
        return content[: dice.randrange(len(content))]
    changed = bytearray(content)
    changed[dice.randrange(min(len(changed), 20_000))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def load_mutated(folder: Path, place: Path, num: int, runner: str) -> Counter[str]:
    """Load a model with mutated projectors while another one is served; return what became of it.

    Args:
        folder: of the intact files.
        place: where files are written.
        num: how many mutations.
        runner: of both models.
    """
    dice, found = random.Random(num), Counter[str]()
    intact = (folder / "mmproj.gguf").read_bytes()
    (place / "model.gguf").write_bytes((folder / "model.gguf").read_bytes())
    config, projector = place / "config.toml", place / "mmproj.gguf"
    models = {"steady": folder / "model.gguf", "changed": place / "model.gguf"}
    config.write_text(TWO_MODELS.format(**models))
    with served(place, "--config", str(config), settings=[f"runner.use={runner}"]) as server:
        assert eventually(lambda: server.status() == 200)
        with Watch(server.url) as watch:
            for number in range(num):
                projector.unlink(missing_ok=True)
                projector.write_bytes(mutated(intact, dice))
                found[loaded(server, number)] += 1
                assert server.status() == 200
        answer = server.post(chat(1, has_image=True, max_tokens=2) | {"model": "steady"})
        assert answer.status_code == 200, answer.text
    print(f"{dict(found)}; {watch.num_asked} probes, slowest {watch.slowest_s:.2f} s")
    assert not watch.problems
    return found


def loaded(server: Process, number: int) -> str:
    """Load the changed model and ask it about an image; return what became of that."""
    name = {"model": "changed"}
    load = server.post(name, "/v1/models/load")
    if load.status_code != 200:
        assert load.json()["error"]["code"] == "model_failed", load.text
        return "rejected"
    answer = server.post(chat(number, has_image=True, max_tokens=2) | name)
    assert server.post(name, "/v1/models/unload").status_code == 200
    assert answer.status_code in (200, 400, 500), answer.text
    return "answered" if answer.status_code == 200 else "request failed"


@pytest.mark.slow
def test_a_server_loads_mutated_projectors_and_is_ready_throughout(
    pair: Pair, tmp_path: Path
) -> None:
    found = load_mutated(pair("smolvlm"), tmp_path, 12, "none")
    assert found["rejected"]
    assert found["answered"]


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("family", ["gemma3", "smolvlm", "mistral3"])
def test_a_server_loads_five_hundred_mutated_projectors_and_is_ready_throughout(
    family: str, pair: Pair, tmp_path: Path
) -> None:
    """In its own process, which an abort of the library would end."""
    found = load_mutated(pair(family), tmp_path, 500, "none")
    assert found["rejected"] > 100
    assert found["answered"] > 100
