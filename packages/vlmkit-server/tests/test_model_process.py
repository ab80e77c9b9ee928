"""Models in child processes: the same answers, and a server that outlives the child."""

import os
import re
import signal
import sys
from contextlib import closing
from pathlib import Path

import openai
import pytest
from bodies import MINIMAL
from process_tree import pid_of_pipeline
from running_server import (
    chat,
    eventually,
    image_part,
    image_url,
    mock_pipeline,
    process,
    running,
    scripted,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")

PLUGIN = Path(__file__).with_name("faulty.py")
SHOWN = [image_part(image_url()), {"type": "text", "text": "what?"}]
ASKED = [
    *((path, body) for path, body in MINIMAL.items()),
    ("/v1/chat/completions", chat(max_tokens=1, stream=True)),
    ("/v1/completions", {"model": "mock", "prompt": "x", "max_tokens": 1, "stream": True}),
    ("/v1/messages", chat(max_tokens=1, stream=True)),
    ("/v1/responses", {"model": "mock", "input": "x", "max_output_tokens": 1, "stream": True}),
    ("/v1/chat/completions", chat(SHOWN, n=2, logprobs=True, top_logprobs=3)),
    ("/v1/chat/completions", chat(scripted(text="abc", tokens=9, fail_at_token=5))),
    ("/v1/chat/completions", chat(temperature=9)),
    ("/v1/chat/completions", chat(logit_bias={"999999": 1})),
]
OWN = re.compile(r"[a-z]+[-_][0-9a-f]{16,}|(?<=\"created\":)[0-9]+|(?<=_at\":)[0-9.]+")


@pytest.fixture(scope="module")
def both():
    """A server of a pipeline, and one of the same model in a child process."""
    models = {"mock": mock_pipeline(runner="subprocess")}
    with running() as here, running(models) as apart:
        yield here, apart


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_an_answer_of_a_child_process_equals_that_of_a_pipeline(both, path, body):
    here, apart = (server.post(body, path) for server in both)
    assert (apart.status_code, contents(apart)) == (here.status_code, contents(here))


def contents(answer):
    """Return an answer without ids and times."""
    return OWN.sub("", answer.text)


def test_a_server_lives_and_is_not_ready_while_the_process_of_its_model_is_restarted(tmp_path):
    command = [sys.executable, "-m", "vlmkit", "serve", "mock"]
    for setting in (
        "server.port=0",
        f'plugins.files=["{PLUGIN}"]',
        "engine.use=faulty",
        "runner.use=subprocess",
        "runner.max_restarts=1000",
    ):
        command += ["--set", setting]
    with process(command, tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        with closing(server.stream(scripted(text="x", tokens=4000, latency_s=0.02))) as answer:
            next(answer)
            (tmp_path / "no_load").touch()
            os.kill(pid_of_pipeline(server), signal.SIGKILL)
            with pytest.raises(openai.APIError):
                list(answer)
        assert eventually(lambda: server.status() == 503)
        assert (server.status("/healthz"), server.status("/health")) == (200, 200)
        readiness = server.get("/readyz")
        assert (readiness.json()["status"], readiness.headers["retry-after"]) == ("loading", "2")
        assert readiness.json()["models"]["mock"]["state"] == "restarting"
        assert server.get("/v1/models/mock").json()["state"] == "restarting"
        refused = server.post(chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_loading")
        assert refused.headers["retry-after"]
        (tmp_path / "no_load").unlink()
        assert eventually(lambda: server.status() == 200)
        assert server.post(chat()).json()["choices"][0]["message"]["content"] == "hello"
        server.process.terminate()
        assert server.process.wait(60) == 0
