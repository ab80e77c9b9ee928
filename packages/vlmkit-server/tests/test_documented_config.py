"""The config and systemd unit of the guide work the same from any working directory."""

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import httpx2
import openai
import pytest
from running_server import eventually, listening

from vlmkit_server.settings.server import ServerSettings

pytestmark = pytest.mark.posix

GUIDE = Path(__file__).parents[3] / "docs/how-to/run-a-service.md"
PART = GUIDE.read_text().partition("## Run it under systemd\n")[2].partition("\n## ")[0]
[CONFIG], [UNIT], [COMMANDS] = (
    re.findall(rf"```{language}\n(.*?)```", PART, re.DOTALL)
    for language in ("toml", "ini", "console")
)
FOLDERS = ("/etc/vlmkit", "/var/lib/vlmkit", "/var/log/vlmkit", "/var/cache/vlmkit")
MODEL = 'model = "demo"'
STARTS = ("unit", "root", "own folder")


def unit_of(text):
    """Return the service section of a unit; of a repeated name, the last value."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(text)
    return parser["Service"]


class Machine:
    """The folders of the guide, below a temporary folder.

    Args:
        root: that folder.
        is_relative: whether the config names its files without folders.
    """

    def __init__(self, root, *, is_relative):
        self.root = root
        self.home = root / "etc/vlmkit"
        for folder in FOLDERS:
            (root / folder[1:]).mkdir(parents=True)
        config, self.unit = self.relocated(CONFIG), unit_of(self.relocated(UNIT))
        if is_relative:
            config = re.sub(r'"/\S+/(\S+)"', r'"\1"', config)
        assert MODEL in config
        (self.home / "vlmkit.toml").write_text(config.replace(MODEL, 'model = "mock"'))
        [line] = [line for line in COMMANDS.splitlines() if " keys add " in line]
        command = shlex.split(self.relocated(line).partition(" -- ")[2])
        self.secret = self.run(command, cwd=root).stdout.strip()

    def relocated(self, text):
        for folder in FOLDERS:
            text = text.replace(folder, f"{self.root}{folder}")
        return text

    def run(self, command, **how):
        assert command[0] == "vlmkit"
        return subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, check=True, **how
        )

    def files(self):
        return {path for path in self.root.rglob("*") if path.is_file()}

    @contextmanager
    def started(self, how):
        """Run the service as the unit says, except for the working directory."""
        command = shlex.split(self.unit["ExecStart"])
        assert command[0] == "/usr/local/bin/vlmkit"
        name, _, value = self.unit["Environment"].partition("=")
        where = {
            "unit": self.unit["WorkingDirectory"],
            "root": self.root.anchor,
            "own folder": str(self.home),
        }
        log = self.root.parent / f"{self.root.name}.log"
        with (
            log.open("wb") as file,
            subprocess.Popen(
                [sys.executable, "-m", "vlmkit", *command[1:], "--port", "0"],
                cwd=where[how],
                env=os.environ | {name: value},
                stderr=file,
            ) as server,
        ):
            try:
                assert eventually(lambda: listening(log) is not None)
                with httpx2.Client(trust_env=False, timeout=300) as http:
                    yield Service(listening(log)[1], self.secret, http)
                server.terminate()
                assert server.wait(300) == 0, log.read_text()
            finally:
                server.kill()


class Service:
    """A server that requires a key."""

    def __init__(self, url, secret, http):
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key=secret, http_client=http)
        headers = {"authorization": f"Bearer {secret}"}
        ready = lambda: http.get(f"{url}/readyz", headers=headers).status_code  # noqa: E731
        assert eventually(lambda: ready() == 200)

    def num_requests_left(self):
        """Send a question, and return the remaining requests of the day."""
        answer = self.openai.chat.completions.with_raw_response.create(
            model="mock", messages=[{"role": "user", "content": "hello"}]
        )
        assert answer.parse().choices[0].message.content == "hello"
        return int(answer.headers["x-ratelimit-remaining-requests"])

    def sent_batch(self):
        body = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
        file = self.openai.files.create(file=("in.jsonl", json.dumps(line)), purpose="batch")
        batch = self.openai.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        assert eventually(lambda: self.openai.batches.retrieve(batch.id).status == "completed")
        return batch.id


@pytest.mark.parametrize(
    "is_relative",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["of the guide", "relative"],
)
def test_usage_batches_and_files_do_not_depend_on_the_working_directory(tmp_path, is_relative):
    machine = Machine(tmp_path / "machine", is_relative=is_relative)
    batches, left, files = [], [], None
    for how in STARTS:
        with machine.started(how) as service:
            left.append(service.num_requests_left())
            ids = {batch.id for batch in service.openai.batches.list()}
            assert ids == set(batches)
            batches.append(service.sent_batch())
            left.append(service.num_requests_left())
        named = {p for p in machine.files() if p.parent.name != "files" and "cache" not in p.parts}
        files = files or named
        assert named == files
    names = {"vlmkit.toml", "keys.jsonl", "access.jsonl", "audit.jsonl", "usage.sqlite"}
    assert {path.name for path in files} == names | {"vlmkit.sqlite3", "reserve"}
    assert all(after < before for before, after in pairwise(left))
    audit = next(machine.root.rglob("audit.jsonl")).read_text().splitlines()
    events = [json.loads(line)["event"] for line in audit]
    assert events.count("started") == len(STARTS)


def test_the_unit_of_the_guide_is_the_one_that_is_shipped():
    assert (GUIDE.parents[2] / "deploy/systemd/vlmkit.service").read_text() == UNIT


def test_systemd_sends_sigterm_to_the_server_alone_and_waits_for_its_drain():
    unit = unit_of(UNIT)
    assert unit["KillMode"] == "mixed"
    assert int(unit["TimeoutStopSec"]) > ServerSettings().drain_timeout_s


def test_the_unit_writes_only_to_folders_that_systemd_allows(tmp_path):
    unit = unit_of(UNIT)
    assert unit["ProtectSystem"] == "strict"
    written = re.findall(
        r'^(?:access_log|audit_log|usage_file|folder|keys_file) = "(.*)"', CONFIG, re.MULTILINE
    )
    assert len(written) == 5
    allowed = tuple(
        f"{base}/{unit[name]}/"
        for name, base in (("StateDirectory", "/var/lib"), ("LogsDirectory", "/var/log"))
    )
    assert all(path.startswith(allowed) for path in written)
    assert unit["WorkingDirectory"] == f"/var/lib/{unit['StateDirectory']}"
    assert unit["Environment"] == f"XDG_CACHE_HOME=/var/cache/{unit['CacheDirectory']}"


def test_the_guide_checks_the_config_before_it_starts_the_unit(tmp_path):
    machine = Machine(tmp_path / "machine", is_relative=False)
    [line] = [line for line in COMMANDS.splitlines() if " --check " in line]
    command = shlex.split(machine.relocated(line).partition(" -- ")[2])
    completed = machine.run([*command, "--port", "0"], cwd="/")
    assert completed.stdout.startswith("valid: ")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_knows_every_directive_of_the_unit(tmp_path):
    file = tmp_path / "vlmkit.service"
    file.write_text(UNIT.replace("/usr/local/bin/vlmkit", sys.executable))
    completed = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not [
        line for line in completed.stderr.splitlines() if str(file) in line or "Unknown" in line
    ]
