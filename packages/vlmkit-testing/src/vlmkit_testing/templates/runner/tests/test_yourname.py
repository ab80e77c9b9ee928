"""The runner keeps vlmkit's contract, with a server of vlmkit's mock model behind it."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import vlmkit
from vlmkit.errors import ConfigError, EngineError, RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit_testing import RunnerContract
from vlmkit_yourname.plugin import SCHEME, RemoteSettings
from vlmkit_yourname.runner import RemoteRunner

KNOWN: dict[str, Any] = {"vocab_size": 261, "eos_ids": (256, 260)}


class Server:
    """A server of the mock model, in a process that starts again after it was killed.

    Args:
        log: what the process writes.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def reference(self) -> str:
        """Return the reference of its model; start it if it does not run."""
        if self._process is None:
            command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--set", "server.port=0"]
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(command, stderr=log)
        while "is ready" not in (said := self._log.read_text()):
            assert self._process.poll() is None, said
            time.sleep(0.05)
        found = re.search(r"listening on http://(\S+)", said)
        assert found is not None
        return f"{SCHEME}://{found[1]}/mock"

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server") / "log")
    yield made
    made.kill()


def remote(server: Server) -> RemoteRunner:
    given = RemoteSettings(check_interval_s=0.2, max_requests=8, **KNOWN)
    return RemoteRunner(server.reference(), "far", given, PipelineSettings())


class TestRemoteRunner(RunnerContract):
    too_many = 9

    @pytest.fixture(autouse=True)
    def _server(self, server: Server) -> None:
        self.server = server

    def make(self) -> Runner:
        return remote(self.server)

    def fail(self, runner: Runner) -> None:
        self.server.kill()


def test_a_model_is_loaded_by_its_reference(server: Server) -> None:
    runner = {"use": SCHEME, "vocab_size": 261, "eos_ids": [256, 260]}
    with vlmkit.load(server.reference(), runner=runner) as model:
        assert model.facts.name == "mock"
        assert model.generate("hello").text == "hello"
        assert list(model.stream("abc")) == ["a", "b", "c"]


def test_what_the_other_server_does_not_tell_must_be_set(server: Server) -> None:
    with pytest.raises(ConfigError, match=r"runner\.vocab_size is not set"):
        vlmkit.load(server.reference())


def test_a_model_that_the_other_server_lacks_is_refused(server: Server) -> None:
    reference = server.reference().replace("/mock", "/other")
    with pytest.raises(EngineError, match="has not one loaded model 'other'"):
        RemoteRunner(reference, "far", RemoteSettings(**KNOWN), PipelineSettings())


def test_a_server_that_is_not_there_is_reported() -> None:
    with pytest.raises(EngineError, match="cannot be reached"):
        RemoteRunner(f"{SCHEME}://127.0.0.1:9", "far", RemoteSettings(), PipelineSettings())


@pytest.mark.parametrize(
    "params", [{"logprobs": True}, {"dry_multiplier": 1.0}, {"xtc_probability": 0.5}]
)
def test_an_unsupported_parameter_is_refused(server: Server, params: dict[str, Any]) -> None:
    with vlmkit.Model(remote(server)) as model:
        (name,) = params
        with pytest.raises(RequestError, match=f"does not follow {name}"):
            model.generate("hello", **params)


def test_the_bytes_of_all_tokens_are_known_without_a_request(server: Server) -> None:
    with closing(remote(server)) as runner:
        server.kill()
        assert len(runner.token_table()) == KNOWN["vocab_size"]
        assert [runner.token_bytes(token_id) for token_id in b"abc"] == [b"a", b"b", b"c"]
        with pytest.raises(RequestError, match="not in the vocabulary"):
            runner.token_bytes(KNOWN["vocab_size"])


def test_a_slow_reader_stops_the_other_server(server: Server) -> None:
    with vlmkit.Model(remote(server)) as model:
        stream = model.submit(model.request("x", max_tokens=5_000, ignore_eos=True))
        time.sleep(0.5)
        most = model.facts.bounds.max_unread_tokens
        assert stream.usage.completion_tokens <= most + 1024
        assert len(stream.result().choices[0].token_ids) == 5_000
