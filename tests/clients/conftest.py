"""A server process, which each client here meets as it would meet any other.

Clients have environments of their own, without vlmkit. The server has one, too: ``SERVER_PYTHON``
is the Python of it. ``nox -s clients`` makes them all. By its name no file here is a test, so that
no other session collects one.
"""

import base64
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PICTURE = Path(__file__).parents[2] / "plugins/vlmkit-demo/src/vlmkit_demo/pictures/shapes.png"


@dataclass(frozen=True)
class Served:
    """A server that listens.

    Attributes:
        url: its address.
        process: the process that it runs in.
    """

    url: str
    process: "subprocess.Popen[bytes]"

    @property
    def v1(self) -> str:
        """The address that clients of OpenAI's APIs are given."""
        return f"{self.url}/v1"

    def status(self) -> dict[str, Any]:
        """Return what the server says of itself; it may not be ready."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=300) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return json.load(refused)


@contextmanager
def serving(
    folder: Path,
    replies: Sequence[Mapping[str, Any]] = (),
    *,
    models: Sequence[str] = ("demo", "mock"),
    **settings: Any,
) -> Iterator[Served]:
    """Run a server until it is no longer needed.

    Args:
        folder: where its config and its log go.
        replies: what the mock answers to what clients say of themselves.
        models: what is served.
        **settings: of the section ``server``.
    """
    config, log = folder / "vlmkit.toml", folder / "log"
    engine = {"engine": {"use": "mock", "replies": list(replies)}}
    tables = [{"model": name} | (engine if name == "mock" else {}) for name in models]
    config.write_text(f"models = {toml(tables)}\nserver = {toml({'port': 0} | settings)}\n")
    command = [os.environ["SERVER_PYTHON"], "-m", "vlmkit", "serve", "--config", str(config)]
    with log.open("wb") as file, subprocess.Popen(command, stderr=file) as process:
        try:
            yield ready(process, log)
        finally:
            process.terminate()


def ready(process: "subprocess.Popen[bytes]", log: Path) -> Served:
    """Wait until a server has loaded its models, for as long as it lives."""
    while True:
        assert process.poll() is None, log.read_text()
        if found := re.search(r"listening on (\S+)\n", log.read_text()):
            server = Served(found[1], process)
            if server.status()["status"] == "ready":
                return server
        time.sleep(0.1)


def toml(value: Any) -> str:
    """Return a value as TOML on one line; its strings are those of JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A server whose mock gives the module's ``REPLIES``."""
    replies = getattr(request.module, "REPLIES", ())
    with serving(tmp_path_factory.mktemp("server"), replies) as server:
        yield server


@pytest.fixture(scope="session")
def png() -> bytes:
    """A picture whose shapes the demo model names."""
    return PICTURE.read_bytes()


@pytest.fixture(scope="session")
def data_url(png: bytes) -> str:
    """The same picture as a URL."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
