"""The servers whose answers are recorded: their settings, their keys, and their starts."""

import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import server

OPEN = """
[[models]]
model = "mock"
name = "mock"
aliases = ["other-name"]

[[models]]
model = "mock"
name = "spare"
load = "use"

[[models]]
model = "demo"

[server]
port = <<port>>
allow_generate = true
drain_timeout_s = 5

[server.data]
folder = "<<folder>>/data"

[server.fleet]
manage = true

[monitors]
use = ["prometheus"]
"""
KEYS = """
[[models]]
model = "mock"
name = "mock"

[server]
port = <<port>>
keys_file = "<<folder>>/keys.jsonl"

[server.fleet]
manage = true

[monitors]
use = ["prometheus"]
"""
TIGHT = """
[[models]]
model = "mock"
name = "mock"

[engine]
max_sequence_tokens = 256

[pipeline]
max_images = 2
max_output_tokens = 16

[server]
port = <<port>>
allowed_origins = ["https://app.example.com"]
unknown_fields = "refuse"
max_tokens_overflow = "reject"
max_body_bytes = 20000
max_text_chars = 2000
max_header_bytes = 4096
max_logprob_bytes = 4096
max_request_pixels = 100
body_timeout_s = 1
header_timeout_s = 1

[server.files]
max_stored = 2
max_stored_bytes = 1000

[server.responses]
max_stored = 0
"""
SERVERS = {"open": OPEN, "keys": KEYS, "tight": TIGHT}
"""Settings by the name of the server. Each server has APIs or errors that the others lack."""

KEY_OPTIONS = {
    "chat": [],
    "embed": ["--scope", "embed"],
    "tokens": ["--scope", "chat", "--scope", "tokens"],
    "metrics": ["--scope", "metrics"],
    "admin": ["--scope", "admin"],
    "limited": ["--limit", "requests=2/day", "--limit", "tokens=100000/day"],
    "few_tokens": ["--limit", "tokens=10/day"],
    "few_images": ["--limit", "images=1/day", "--limit", "image_tokens=1000/day"],
}
"""The options of ``vlmkit keys add`` for each key of the server with keys."""


@dataclass(frozen=True)
class Source:
    """The recorded version.

    Attributes:
        python: an interpreter.
        path: the paths before its own packages, as in ``PYTHONPATH``.
    """

    python: str
    path: str = ""

    @property
    def env(self) -> dict[str, str]:
        """The environment of its processes, without settings of the recording user."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLMKIT_", "PYTHON"))}
        return {**kept, "PYTHONPATH": self.path, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of ``vlmkit``."""
        return [self.python, "-m", "vlmkit", *arguments]

    def run(self, *arguments: str) -> str:
        """Return the output of a command of ``vlmkit``."""
        command = self.command(*arguments)
        done = subprocess.run(command, env=self.env, check=True, capture_output=True, text=True)
        return done.stdout


@dataclass(frozen=True)
class Running:
    """A running server.

    Attributes:
        port: the port of the loopback address.
        folder: the folder of its files.
        keys: secrets by the names of the keys.
    """

    port: int
    folder: Path
    keys: Mapping[str, str]


@contextlib.contextmanager
def started(source: Source, settings: str, folder: Path) -> Iterator[Running]:
    """Run a server with settings in an empty folder, until the block ends."""
    port = server.free_port()
    keys = _made_keys(source, folder / "keys.jsonl") if "keys_file" in settings else {}
    config = folder / "vlmkit.toml"
    config.write_text(settings.replace("<<port>>", str(port)).replace("<<folder>>", str(folder)))
    command = source.command("serve", "--config", str(config))
    with only(source.env), server.running(command, port, "/healthz", folder / "log"):
        _wait_until_ready(port, keys.get("admin", ""))
        yield Running(port, folder, keys)


@contextlib.contextmanager
def only(env: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment of this process in the block."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _made_keys(source: Source, file: Path) -> dict[str, str]:
    """Return the secrets of new keys by name, and a revoked one."""
    made = {
        name: source.run("keys", "add", name, *options, "--file", str(file)).split()[-1]
        for name, options in KEY_OPTIONS.items()
    }
    made["revoked"] = source.run("keys", "add", "revoked", "--file", str(file)).split()[-1]
    lines = map(json.loads, file.read_text().splitlines())
    (key_id,) = [line["id"] for line in lines if line.get("name") == "revoked"]
    source.run("keys", "revoke", key_id, "--file", str(file))
    return made


def _wait_until_ready(port: int, key: str) -> None:
    headers = {"x-api-key": key} if key else {}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/readyz", headers=headers)
    for _ in range(1200):
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(asked) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError("the server did not become ready")
