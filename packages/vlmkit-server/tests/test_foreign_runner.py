"""The server in front of a runner that is no pipeline."""

import gc
import socket

import openai
import pytest
from running_server import chat, eventually, image_part, image_url, mock_pipeline, running, scripted

import vlmkit
from vlmkit.errors import EngineError
from vlmkit.running.replicas import Replicas
from vlmkit_server.app import create_app
from vlmkit_server.run import serve
from vlmkit_server.settings.server import ServerSettings

ENDLESS = scripted(text="x", tokens=4000, latency_s=0.01)
CRASH = scripted(text="abc", crash_at_token=1)


@pytest.fixture
def replicas():
    return Replicas([mock_pipeline(), mock_pipeline()])


def stream(server, text):
    return server.client().chat.completions.create(
        model="mock", messages=[{"role": "user", "content": text}], stream=True
    )


def num_running(replicas):
    return [runner.stats().num_running for runner in replicas.runners]


def test_answers_of_a_foreign_runner_equal_those_of_a_pipeline(replicas):
    with running() as alone, running({"mock": replicas}) as server:
        parts = [image_part(image_url()), {"type": "text", "text": "what?"}]
        body = {"model": "mock", "logprobs": True, "top_logprobs": 2}
        body["messages"] = [{"role": "user", "content": parts}]
        choices = [each.post(body).json()["choices"] for each in (alone, server)]
        assert choices[0] == choices[1]
        assert choices[0][0]["logprobs"]["content"]
        pieces = [each.choices[0].delta.content or "" for each in stream(server, "hello")]
        assert "".join(pieces) == "hello"
        models = [each.get("/v1/models").json()["data"][0] for each in (alone, server)]
        assert [model | {"created": 0} for model in models] == [models[0] | {"created": 0}] * 2


def test_two_requests_use_two_engines_and_a_disconnect_frees_one(replicas):
    with running({"mock": replicas}) as server:
        one = server.connect(chat(ENDLESS, stream=True))
        assert eventually(lambda: num_running(replicas) == [1, 0])
        other = server.connect(chat(ENDLESS, stream=True))
        assert eventually(lambda: num_running(replicas) == [1, 1])
        assert server.get("/readyz").json()["models"]["mock"]["num_running"] == 2
        one.close()
        assert eventually(lambda: num_running(replicas) == [0, 1])
        assert b"200 OK" in other.recv(1000)
        other.close()
        assert eventually(server.is_idle)


def test_an_engine_failure_ends_only_its_own_answers(replicas):
    with running({"mock": replicas}) as server:
        answer = stream(server, ENDLESS)
        next(answer)
        with pytest.raises(openai.InternalServerError) as caught:
            server.client().chat.completions.create(
                model="mock", messages=[{"role": "user", "content": CRASH}]
            )
        assert caught.value.code == "model_failed"
        assert eventually(lambda: not replicas.runners[1].is_ready)
        assert [server.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
        next(answer)
        answer.close()
        assert server.post(chat("hello")).json()["choices"][0]["message"]["content"] == "hello"
        assert server.post(chat(CRASH)).status_code == 503
        assert eventually(lambda: server.get("/healthz").status_code == 503)
        assert server.post(chat("hello")).json()["error"]["code"] == "model_failed"


def test_the_failure_of_the_last_engine_ends_the_server(replicas):
    for runner in replicas.runners:
        with pytest.raises(EngineError):
            vlmkit.Model(runner).generate(CRASH)
    with pytest.raises(EngineError, match="engine of model 'one' failed"):
        serve({"one": replicas}, ServerSettings(port=0))


def test_requests_are_refused_when_all_engines_are_full():
    replicas = Replicas([mock_pipeline(max_sequences=1, max_waiting=1) for _ in range(2)])
    with running({"mock": replicas}) as server:
        held: list[socket.socket] = []
        for num_open in range(1, 5):
            held.append(server.connect(chat(ENDLESS, stream=True)))
            assert eventually(lambda n=num_open: num_open_at(replicas) == n)
        assert eventually(lambda: server.get("/readyz").json()["status"] == "full")
        assert server.post(chat("hello")).status_code == 429
        for connection in held:
            connection.close()
        assert eventually(server.is_idle)


def num_open_at(runner):
    stats = runner.stats()
    return stats.num_running + stats.num_waiting


def test_a_loader_may_return_a_model_whose_failure_ends_the_server():
    model = vlmkit.load("mock")
    settled = []

    def crash(_names):
        settled.append(gc.get_freeze_count())
        with pytest.raises(EngineError):
            model.generate(CRASH)

    with pytest.raises(EngineError, match="engine of model 'one' failed"):
        serve({"one": lambda: model}, ServerSettings(port=0), on_loaded=crash)
    assert not model.runner.is_ready
    assert settled[0] > 10_000, "the collector looks at what was loaded, while answers run"
    assert gc.get_freeze_count() == 0


def test_a_server_accepts_a_model_in_place_of_its_runner():
    with vlmkit.load("mock") as model:
        app = create_app({"mock": model})
        assert app.asgi_handler._service.models["mock"].runner is model.runner
