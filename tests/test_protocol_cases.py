"""Protocol cases of llama.cpp's and vLLM's server tests, sent to server processes.

Each server runs once: the mock, the demo model, and the mock where API keys are required.
"""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx2
import pytest

import protocol_page
from protocol.case import KEY, PAGE, Answer, filled

pytest.importorskip("llguidance")
pytestmark = pytest.mark.posix

CASES = [(project, case) for project, cases in protocol_page.CASES.items() for case in cases]
TRIED = [(server, project, case) for project, case in CASES for server in case.servers]


@dataclass(frozen=True)
class Served:
    """A server process, and how to send requests to it."""

    http: httpx2.Client
    model: str
    key: str = ""

    def send(self, call):
        headers = {"content-type": "application/json"} | dict(call.headers)
        if self.key:
            headers = {"authorization": f"Bearer {self.key}"} | headers
        headers = {name: value.replace(KEY, self.key) for name, value in headers.items() if value}
        path = filled(call.path, self.model)
        if call.form is not None:
            headers.pop("content-type")
            fields = dict(call.form)
            name, text = fields.pop("file")
            sent = {"data": fields, "files": {"file": (name, filled(text, self.model).encode())}}
        elif isinstance(call.body, bytes):
            sent = {"content": call.body}
        elif call.body is not None:
            sent = {"content": json.dumps(filled(call.body, self.model)).encode()}
        else:
            sent = {}
        answer = self.http.request(call.method, path, headers=headers, **sent)
        return Answer(answer.status_code, answer.headers, answer.text)


@contextmanager
def process(folder, model, **server):
    """Run a server process of one model."""
    tables = {"port": 0, "allowed_origins": [PAGE], "allow_generate": True, **server}
    lines = [f'model = "{model}"', 'monitors = {use = ["prometheus"]}', "[server]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in tables.items()]
    lines += ["[server.data]", f'folder = "{folder / "data"}"']
    config, log = folder / "vlmkit.toml", folder / "log"
    config.write_text("\n".join(lines))
    command = [sys.executable, "-m", "vlmkit", "serve", "--config", str(config)]
    with log.open("wb") as file, subprocess.Popen(command, stderr=file) as running:
        try:
            deadline = time.monotonic() + 300
            while f"'{model}' is ready\n" not in log.read_text():
                assert running.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield re.search(r"listening on (\S+)", log.read_text())[1]
        finally:
            running.kill()


def new_key(folder):
    """Return an API key that may do all that the cases do, in a file of keys."""
    command = [sys.executable, "-m", "vlmkit", "keys", "add", "cases"]
    command += ["--scope", "chat", "--scope", "embed", "--file", str(folder / "keys.jsonl")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return a function that gives a server by its name, and starts it when it is first needed."""
    running = {}
    with ExitStack() as stack:

        def server(name):
            if name not in running:
                folder = tmp_path_factory.mktemp(name)
                model, settings, key = name, {}, ""
                if name == "keyed":
                    model, key = "mock", new_key(folder)
                    settings = {"keys_file": str(folder / "keys.jsonl")}
                url = stack.enter_context(process(folder, model, **settings))
                http = stack.enter_context(httpx2.Client(base_url=url, timeout=120))
                running[name] = Served(http, model, key)
            return running[name]

        yield server


@pytest.mark.parametrize(
    ("server", "case"),
    [
        pytest.param(server, case, id=f"{server}-{case.source}-{case.name}")
        for server, _, case in TRIED
    ],
)
def test_the_server_behaves_as_the_verdict_states(served, server, case):
    answers = []
    for call in case.calls:
        answers.append(served(server).send(call if not callable(call) else call(answers)))
    last = answers[-1]
    shown = "\n".join(f"{each.status} {each.text[:2000]}" for each in answers)
    assert last.status == case.status, shown
    assert not case.names or case.names in last.error, shown
    assert case.rejected or case.holds(*answers), shown


def test_the_number_of_cases_reaches_its_minimum():
    assert len(CASES) >= 150
    twice = [key for key, n in Counter((p, c.source, c.name) for p, c in CASES).items() if n > 1]
    assert not twice


def test_each_rejection_has_a_reason_a_status_and_a_parameter():
    for _, case in CASES:
        assert not (case.rejected and case.otherwise), case
        assert bool(case.rejected) <= bool(case.status >= 400 and case.names), case
        assert not case.otherwise or case.status < 400 or case.names, case


def test_the_page_of_protocol_cases_equals_the_cases():
    assert protocol_page.PATH.read_text() == protocol_page.page(), "renew it: nox -s reference"
