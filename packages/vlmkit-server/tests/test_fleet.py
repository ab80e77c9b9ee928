"""Several models: loaded on demand, unloaded when memory is short or they are idle."""

import json

import pytest
from running_server import chat, eventually, mock_pipeline, running, scripted

from vlmkit.errors import ConfigError
from vlmkit_server.exchange.service import Service
from vlmkit_server.fleet import fleet as fleet_module
from vlmkit_server.settings.fleet import FleetSettings
from vlmkit_server.settings.server import ServerSettings

ENDLESS = scripted(text="x", tokens=4000, latency_s=0.01)
SHORT = scripted(text="abc", tokens=30, latency_s=0.01)


def serve_models(models, **settings):
    return running(models, fleet=FleetSettings(**{"load": "use"} | settings))


def ask(server, name, text="hello", **fields):
    return server.post(chat(text, **fields) | {"model": name})


def answer_text(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def error_of(answer):
    return answer.status_code, answer.json()["error"]["code"]


def states(server):
    models = server.get("/readyz").json()["models"]
    return {name: model["state"] for name, model in models.items()}


def has_waiting_requests(server, name, number):
    return eventually(lambda: server.service.models[name].num_waiting == number)


def streaming(server, name, text=ENDLESS):
    """Start a long answer."""
    before = server.service.models[name].num_users
    connection = server.connect(chat(text, stream=True) | {"model": name})
    assert eventually(lambda: server.service.models[name].num_users == before + 1)
    return connection


def test_a_model_is_loaded_for_the_first_request_that_names_it(loader):
    with serve_models({"one": loader.spec("one"), "two": loader.spec("two")}) as server:
        assert states(server) == {"one": "unloaded", "two": "unloaded"}
        assert server.get("/readyz").status_code == 200
        assert server.get("/v1/models/one").json()["max_model_len"] is None
        assert [answer_text(ask(server, "one")) for _ in range(2)] == ["hello", "hello"]
        assert states(server) == {"one": "ready", "two": "unloaded"}
        assert server.get("/v1/models/one").json()["max_model_len"]
    assert loader.num_loads == {"one": 1}
    assert loader.loaded_bytes == 0


def test_concurrent_requests_load_a_model_once_and_do_not_block_other_models(loader, pool):
    models = {"slow": loader.spec("slow"), "quick": loader.spec("quick")}
    with serve_models(models) as server:
        assert answer_text(ask(server, "quick")) == "hello"
        loader.block("slow")
        answers = [pool.submit(ask, server, "slow", str(n)) for n in range(3)]
        assert has_waiting_requests(server, "slow", 3)
        assert states(server)["slow"] == "loading"
        assert server.get("/readyz").json()["models"]["slow"]["num_waiting_for_load"] == 3
        assert server.get("/readyz").status_code == 200
        assert answer_text(ask(server, "quick")) == "hello"
        loader.release("slow")
        assert [answer_text(answer.result()) for answer in answers] == ["0", "1", "2"]
    assert loader.num_loads == {"quick": 1, "slow": 1}


def test_a_client_that_disconnects_while_waiting_affects_no_other(loader, pool):
    with serve_models({"one": loader.spec("one")}) as server:
        loader.block("one")
        gone = server.connect(chat() | {"model": "one"})
        stays = pool.submit(ask, server, "one")
        assert has_waiting_requests(server, "one", 2)
        gone.close()
        assert has_waiting_requests(server, "one", 1)
        loader.release("one")
        assert answer_text(stays.result()) == "hello"
        assert server.service.models["one"].num_users == 0


def test_a_model_whose_waiting_requests_disconnected_is_not_loaded(loader, pool):
    with serve_models({"first": loader.spec("first"), "then": loader.spec("then")}) as server:
        loader.block("first")
        first = pool.submit(ask, server, "first")
        assert has_waiting_requests(server, "first", 1)
        gone = server.connect(chat() | {"model": "then"})
        assert has_waiting_requests(server, "then", 1)
        assert states(server) == {"first": "loading", "then": "waiting"}
        gone.close()
        assert eventually(lambda: states(server)["then"] == "unloaded")
        loader.release("first")
        assert answer_text(first.result()) == "hello"
    assert loader.num_loads == {"first": 1}


def test_a_failed_load_fails_all_waiting_requests_and_is_retried(loader, pool, monkeypatch):
    with serve_models({"one": loader.spec("one"), "two": loader.spec("two")}) as server:
        loader.block("one")
        loader.set_broken("one")
        answers = [pool.submit(ask, server, "one") for _ in range(3)]
        assert has_waiting_requests(server, "one", 3)
        loader.release("one")
        for answer in answers:
            assert error_of(answer.result()) == (503, "model_failed")
            assert 1 <= int(answer.result().headers["retry-after"]) <= 30
            assert "weights" not in answer.result().text
        loader.set_broken("one", is_broken=False)
        assert error_of(ask(server, "one")) == (503, "model_failed")
        assert loader.num_loads == {"one": 1}  # requests cannot cause endless attempts
        assert server.get("/readyz").status_code == 200
        monkeypatch.setattr(fleet_module, "RETRY_LOAD_S", 0)
        assert answer_text(ask(server, "one")) == "hello"
    assert loader.loaded_bytes == 0


def test_the_least_recently_used_idle_model_is_evicted(loader):
    specs = {name: loader.spec(name, 2) for name in ("a", "b", "c")}
    with serve_models(specs, memory_budget_bytes=5) as server:
        for name in "aba":
            assert answer_text(ask(server, name)) == "hello"
        assert answer_text(ask(server, "c")) == "hello"
        assert states(server) == {"a": "ready", "b": "unloaded", "c": "ready"}
        assert server.get("/v1/models/b").json()["max_model_len"]  # known after unloading
    assert loader.max_loaded_bytes == 4
    assert loader.loaded_bytes == 0


def test_a_busy_model_is_not_unloaded_and_other_models_wait_for_memory(loader, pool):
    specs = {name: loader.spec(name, 3) for name in ("busy", "other")}
    with serve_models(specs | {"small": loader.spec("small")}, memory_budget_bytes=4) as server:
        connection = streaming(server, "busy")
        waiting = pool.submit(ask, server, "other")
        assert has_waiting_requests(server, "other", 1)
        assert answer_text(ask(server, "small")) == "hello"  # fits beside the busy model
        assert answer_text(ask(server, "busy")) == "hello"
        assert states(server) == {"busy": "ready", "other": "waiting", "small": "ready"}
        connection.close()
        assert answer_text(waiting.result()) == "hello"
        assert states(server)["busy"] == "unloaded"
    assert loader.max_loaded_bytes == 4


def test_the_wait_for_a_model_has_a_timeout(loader):
    with serve_models({"one": loader.spec("one")}, load_wait_s=0.05) as server:
        loader.block("one")
        answer = ask(server, "one")
        assert error_of(answer) == (503, "model_loading")
        assert answer.headers["retry-after"]
        loader.release("one")
        assert eventually(lambda: states(server)["one"] == "ready")
        assert answer_text(ask(server, "one")) == "hello"


def test_at_most_half_of_the_requests_wait_for_models(loader, pool):
    models = {"one": loader.spec("one"), "two": mock_pipeline()}
    with running(models, max_requests=4, fleet=FleetSettings(load="use")) as server:
        loader.block("one")
        answers = [pool.submit(ask, server, "one") for _ in range(2)]
        assert has_waiting_requests(server, "one", 2)
        assert error_of(ask(server, "one")) == (429, "server_overloaded")
        assert answer_text(ask(server, "two")) == "hello"
        loader.release("one")
        assert [answer_text(answer.result()) for answer in answers] == ["hello"] * 2


def test_an_idle_model_is_unloaded_and_loaded_again_on_use(loader):
    specs = {"kept": loader.spec("kept"), "idle": loader.spec("idle", idle_unload_s=0.05)}
    with serve_models(specs) as server:
        assert answer_text(ask(server, "kept")) == "hello"
        connection = streaming(server, "idle")
        assert states(server)["idle"] == "ready"
        connection.close()
        assert eventually(lambda: states(server)["idle"] == "unloaded")
        assert eventually(lambda: loader.loaded_bytes == 1)
        assert answer_text(ask(server, "idle")) == "hello"
        assert states(server)["kept"] == "ready"


def test_models_loaded_at_startup_are_unloaded_when_idle(loader):
    with serve_models({"one": loader.spec("one")}, load="start", idle_unload_s=0.05) as server:
        assert eventually(lambda: loader.num_loads["one"] and states(server)["one"] == "unloaded")
        assert server.get("/readyz").status_code == 200
        assert answer_text(ask(server, "one")) == "hello"


def test_a_model_over_the_memory_budget_is_refused_by_name(loader, caplog):
    specs = {"large": loader.spec("large", 9, weigh=lambda: 9), "small": loader.spec("small", 2)}
    with serve_models(specs, memory_budget_bytes=8) as server:
        assert answer_text(ask(server, "small")) == "hello"
        assert error_of(ask(server, "large")) == (503, "model_too_large")
        assert states(server) == {"large": "failed", "small": "ready"}
        assert server.get("/readyz").json()["models"]["large"]["memory_bytes"] == 9
    assert loader.num_loads == {"small": 1}
    assert "model 'large' takes 9 bytes, more than server.fleet.memory_budget_bytes = 8" in (
        caplog.text
    )


def test_a_model_whose_size_cannot_be_estimated_fails(loader):
    def weigh():
        raise ConfigError("no such folder")

    specs = {"lost": loader.spec("lost", weigh=weigh), "small": loader.spec("small", 2)}
    with serve_models(specs, memory_budget_bytes=8) as server:
        assert error_of(ask(server, "lost")) == (503, "model_failed")
        assert answer_text(ask(server, "small")) == "hello"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 9}, "model 'one' takes 9 bytes, more than"),
        ({"weigh": None}, "the memory size of model 'one' is unknown"),
        ({"size": 8}, "the models that are loaded at the start take 9 bytes, more than"),
        ({"aliases": ("two",)}, "two models are called 'two'"),
        ({"aliases": ("one",)}, "two models are called 'one'"),
    ],
)
def test_conflicting_models_are_refused_before_any_is_loaded(loader, fields, message):
    specs = {"one": loader.spec("one", **fields), "two": loader.spec("two")}
    settings = ServerSettings(fleet=FleetSettings(memory_budget_bytes=8))
    with pytest.raises(ConfigError, match=message):
        Service(specs, settings)
    assert not loader.num_loads


def test_a_model_answers_under_the_alias_of_the_request(loader):
    specs = {"one": loader.spec("one", aliases=("gpt-4o", "best/one")), "two": mock_pipeline()}
    with serve_models(specs) as server:
        for name in ("gpt-4o", "best/one", "one"):
            answer = ask(server, name)
            assert answer_text(answer) == "hello"
            assert answer.json()["model"] == name
            assert server.get(f"/v1/models/{name}").json()["root"] == "one"
        events = ask(server, "gpt-4o", stream=True).text.split("\n\n")
        assert json.loads(events[0].removeprefix("data: "))["model"] == "gpt-4o"
        listed = {model["id"]: model["root"] for model in server.get("/v1/models").json()["data"]}
        assert listed == {"one": "one", "gpt-4o": "one", "best/one": "one", "two": "two"}
        capabilities = server.get("/v1/capabilities").json()["models"]
        assert [(each["id"], each["aliases"]) for each in capabilities] == [
            ("one", ["gpt-4o", "best/one"]),
            ("two", []),
        ]
        assert error_of(ask(server, "gpt")) == (404, "model_not_found")
    assert loader.num_loads == {"one": 1}


def test_tokenization_embeddings_and_anthropics_api_load_a_model(loader):
    bodies = {
        "/tokenize": {"model": "one", "prompt": "x"},
        "/v1/embeddings": {"model": "one", "input": "x"},
        "/v1/messages": chat(max_tokens=4) | {"model": "one"},
        "/v1/completions": {"model": "one", "prompt": "x", "max_tokens": 2},
    }
    with serve_models({"one": loader.spec("one", idle_unload_s=0.01)}) as server:
        for path, body in bodies.items():
            assert server.post(body, path).status_code == 200
            assert eventually(lambda: states(server)["one"] == "unloaded")
    assert loader.num_loads == {"one": 4}


def test_a_background_answer_keeps_its_model_loaded(loader):
    with serve_models({"one": loader.spec("one")}, idle_unload_s=0.01) as server:
        body = {"model": "one", "input": SHORT, "background": True}
        response = server.post(body, "/v1/responses").json()
        assert eventually(lambda: states(server)["one"] == "unloaded")
        stored = server.get(f"/v1/responses/{response['id']}").json()
        assert stored["status"] == "completed"
        assert len(stored["output"][0]["content"][0]["text"]) == 30
