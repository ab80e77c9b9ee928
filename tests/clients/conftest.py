"""A server process, which each client here meets as it would meet any other.

Clients have environments of their own, without vlmkit. The server has one, too: ``SERVER_PYTHON``
is the Python of it. ``nox -s clients`` makes them all. By its name no file here is a test, so that
no other session collects one.
"""

import base64
import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

PICTURE = Path(__file__).parents[2] / "plugins/vlmkit-demo/src/vlmkit_demo/pictures/shapes.png"


@dataclass(frozen=True)
class Served:
    """A server that listens.

    Attributes:
        url: its address.
        process: the process that it runs in.
        key: what it asks for, if anything.
    """

    url: str
    process: "subprocess.Popen[bytes]"
    key: str = ""

    @property
    def v1(self) -> str:
        """The address that clients of OpenAI's APIs are given."""
        return f"{self.url}/v1"

    def status(self) -> dict[str, Any]:
        """Return what the server says of itself; it may not be ready."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        asks = urllib.request.Request(f"{self.url}/readyz", headers=headers)
        try:
            with urllib.request.urlopen(asks, timeout=300) as answer:
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
    engine: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> Iterator[Served]:
    """Run a server until it is no longer needed.

    Args:
        folder: where its config and its log go.
        replies: what the mock answers to what clients say of themselves.
        models: what is served.
        engine: other settings of the mock.
        **settings: of the section ``server``.
    """
    config, log = folder / "vlmkit.toml", folder / "log"
    mock = {"engine": {"use": "mock", "replies": list(replies)} | dict(engine)}
    tables = [{"model": name} | (mock if name == "mock" else {}) for name in models]
    config.write_text(f"models = {toml(tables)}\nserver = {toml({'port': 0} | settings)}\n")
    command = [os.environ["SERVER_PYTHON"], "-m", "vlmkit", "serve", "--config", str(config)]
    with log.open("wb") as file, subprocess.Popen(command, stderr=file) as process:
        try:
            yield ready(process, log, settings.get("api_key", ""))
        finally:
            process.terminate()


def ready(process: "subprocess.Popen[bytes]", log: Path, key: str = "") -> Served:
    """Wait until a server has loaded its models, for as long as it lives."""
    while True:
        assert process.poll() is None, log.read_text()
        if found := re.search(r"listening on (\S+)\n", log.read_text()):
            server = Served(found[1], process, key)
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


def environment(home: Path, **own: str) -> dict[str, str]:
    """Return the environment of a program that has a home of its own and reaches this machine only.

    Whatever it asks another machine for goes to a port of this one where nothing listens.
    """
    kept = {name: os.environ[name] for name in ("LANG", "PATH", "TMPDIR") if name in os.environ}
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    proxies = dict.fromkeys([*names, *map(str.lower, names)], "http://127.0.0.1:9")
    local = dict.fromkeys(["NO_PROXY", "no_proxy"], "127.0.0.1,localhost")
    return kept | proxies | local | {"HOME": str(home), "NO_COLOR": "1"} | own


def output_of(
    *command: str, cwd: Path, env: Mapping[str, str], said: str = "", code: int = 0
) -> str:
    """Run a program that has to end with an exit code, and return what it writes."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        input=said,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,  # some wait without end for data that they cannot read
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@contextmanager
def listening(*command: str, url: str, folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Run a program until it is no longer needed, from when it answers at a URL on."""
    log = folder / "program.log"
    with (
        log.open("wb") as file,
        subprocess.Popen(command, cwd=folder, env=env, stdout=file, stderr=file) as process,
    ):
        try:
            while not answers(url):
                assert process.poll() is None, log.read_text()
                time.sleep(0.2)
            yield
        finally:
            process.terminate()


def answers(url: str) -> bool:
    """Tell whether something answers at a URL, and is content."""
    try:
        with urllib.request.urlopen(url):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def of_node(name: str) -> str:
    """Return the path of a command that npm installed."""
    return str(Path(os.environ["NODE_FOLDER"], "node_modules", ".bin", name))


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A server whose mock gives the module's ``REPLIES``, with the settings of its ``ENGINE``."""
    replies = getattr(request.module, "REPLIES", ())
    engine = getattr(request.module, "ENGINE", {})
    models = getattr(request.module, "MODELS", ("demo", "mock"))
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, replies, models=models, engine=engine) as server:
        yield server


@pytest.fixture(scope="session")
def png() -> bytes:
    """A picture whose shapes the demo model names."""
    return PICTURE.read_bytes()


@pytest.fixture(scope="session")
def described() -> str:
    """What the mock says of that picture."""
    return "image 1: 336x336 sha256:06ccc8c1ebfa9fed"


@pytest.fixture(scope="session")
def data_url(png: bytes) -> str:
    """The same picture as a URL."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
