"""Fatal engine errors: requests fail with a code, and the process ends with a reason.

The server is the real command, in front of two mocks; one of them crashes.
"""

import signal
import sys
import textwrap
from contextlib import contextmanager

import openai
import pytest
from running_server import eventually, mock_pipeline, process, running, scripted

from vlmkit.errors import EngineError
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_server.run import serve
from vlmkit_server.settings.server import ServerSettings

pytestmark = pytest.mark.posix

CONFIG = textwrap.dedent("""
    [[models]]
    model = "mock"
    name = "fragile"

    [[models]]
    model = "mock"
    name = "sound"

    [server]
    drain_timeout_s = 3600
""")
ENDLESS = scripted(text="x", tokens=4000, latency_s=0.05)
CRASH = scripted(text="abc", crash_at_token=1)


@contextmanager
def command(tmp_path):
    (tmp_path / "vlmkit.toml").write_text(CONFIG)
    arguments = ["serve", "--config", "vlmkit.toml", "--port", "0"]
    with process([sys.executable, "-m", "vlmkit", *arguments], tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        yield server


def stream(server, model):
    """Start an answer that does not end by itself."""
    answer = server.stream(ENDLESS, model)
    next(answer)
    return answer


def crash(server):
    """Send a prompt that crashes the engine of one model."""
    with pytest.raises(openai.InternalServerError) as caught:
        server.client.chat.completions.create(
            model="fragile", messages=[{"role": "user", "content": CRASH}]
        )
    assert caught.value.code == "model_failed"
    assert "told to crash" not in str(caught.value)


def test_a_fatal_engine_error_ends_the_command_with_a_code_and_a_reason(tmp_path):
    with command(tmp_path) as server:
        assert (server.status("/healthz"), server.status("/health")) == (200, 200)
        cut_off = stream(server, "fragile")
        crash(server)
        with pytest.raises(openai.APIError) as caught:
            list(cut_off)
        assert caught.value.code == "model_failed"
        assert server.process.wait(300) == 3
    log = server.log.read_text()
    assert "the engine loop failed; no more requests are served" in log
    assert "builtins.RuntimeError" in log  # no message: it may quote a client
    assert "error: the engine of model 'fragile' failed, and the server ended\nhint: " in log


def test_liveness_fails_while_answers_of_other_models_finish(tmp_path):
    with command(tmp_path) as server:
        other = stream(server, "sound")
        crash(server)
        assert eventually(lambda: server.status("/healthz") == 503)
        assert server.status("/health") == 503
        next(other)
        server.process.send_signal(signal.SIGTERM)  # as after a failed liveness probe
        next(other)
        other.close()
        assert server.process.wait(300) == 3


class FragileEngine(MockEngine):
    """An engine that cannot even be closed once it is broken."""

    def close(self):
        raise RuntimeError("told to")


def test_a_model_that_failed_before_startup_ends_the_server_and_closes_the_others():
    broken, sound = Pipeline(tokenizer=MockTokenizer(), engine=FragileEngine()), mock_pipeline()
    with pytest.raises(EngineError):
        Model(broken).generate(CRASH)
    with pytest.raises(EngineError, match="engine of model 'one' failed") as caught:
        serve({"one": broken, "two": sound}, ServerSettings(port=0))
    assert caught.value.__cause__ is not None
    assert not sound.is_ready


def test_a_panic_while_loading_a_model_ends_the_server_with_a_reason():
    class Panic(BaseException):
        """An error like one of a Rust library: no ``Exception``."""

    def load():
        raise Panic("bad tokenizer")

    with pytest.raises(EngineError, match="model 'one' could not be loaded: Panic") as caught:
        serve({"one": load}, ServerSettings(port=0))
    assert isinstance(caught.value.__cause__, Panic)


def test_liveness_of_an_embedded_server_fails_too():
    pipeline = mock_pipeline()
    with running({"mock": pipeline, "late": None}) as server:
        assert server.get("/health").json() == {"status": "ok"}
        pipeline.close()
        assert server.get("/healthz").status_code == 503
        assert server.get("/health").json() == {"status": "failed"}
