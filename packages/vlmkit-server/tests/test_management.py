"""Clients load and unload models by name over HTTP, if the operator allows it."""

import pytest
from running_server import chat, eventually, mock_pipeline, running
from test_fleet import (
    ENDLESS,
    SHORT,
    answer_text,
    ask,
    error_of,
    has_waiting_requests,
    serve_models,
    states,
    streaming,
)

PATHS = ["/v1/models/load", "/v1/models/unload", "/models/load", "/models/unload"]


def manage(server, what, name, **fields):
    return server.post({"model": name} | fields, f"/v1/models/{what}")


def state_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["state"]


@pytest.mark.parametrize("path", PATHS)
def test_clients_load_and_unload_only_if_the_operator_allows_it(server, path):
    assert server.post({"model": "mock"}, path).status_code in (404, 405)
    assert answer_text(ask(server, "mock")) == "hello"


def test_a_model_loaded_on_request_serves_until_it_is_unloaded(loader):
    with serve_models({"one": loader.spec("one")}, load="request", manage=True) as server:
        assert error_of(ask(server, "one")) == (503, "model_unloaded")
        answer = manage(server, "load", "one")
        assert state_of(answer) == "ready"
        assert answer.json()["success"] is True
        assert answer.json()["max_model_len"]
        assert answer_text(ask(server, "one")) == "hello"
        assert state_of(manage(server, "load", "one")) == "ready"
        assert state_of(manage(server, "unload", "one")) == "unloaded"
        assert loader.loaded_bytes == 0
        assert state_of(manage(server, "unload", "one")) == "unloaded"
        assert error_of(ask(server, "one")) == (503, "model_unloaded")
    assert loader.num_loads == {"one": 1}


def test_paths_of_other_servers_load_and_unload_models(loader):
    with serve_models({"one": loader.spec("one")}, load="request", manage=True) as server:
        assert state_of(server.post({"model": "one"}, "/models/load")) == "ready"
        assert state_of(server.post({"model": "one"}, "/models/unload")) == "unloaded"


def test_a_model_is_unloaded_after_its_answers_and_reloaded_for_new_requests(loader, pool):
    with serve_models({"one": loader.spec("one")}, manage=True) as server:
        running_answer = pool.submit(ask, server, "one", SHORT)
        assert eventually(lambda: server.service.models["one"].num_users == 1)
        unloading = pool.submit(manage, server, "unload", "one")
        assert eventually(lambda: states(server)["one"] != "ready")
        new_answer = pool.submit(ask, server, "one", "new")
        assert len(answer_text(running_answer.result())) == 30
        assert answer_text(new_answer.result()) == "new"
        assert unloading.result().status_code == 200
    assert loader.num_loads == {"one": 2}
    assert loader.max_loaded_bytes == 1


def test_a_request_without_waiting_returns_the_current_state(loader):
    with serve_models({"one": loader.spec("one")}, manage=True) as server:
        loader.block("one")
        assert state_of(manage(server, "load", "one", wait=False)) == "loading"
        loader.release("one")
        assert eventually(lambda: states(server)["one"] == "ready")
        connection = streaming(server, "one", ENDLESS)
        assert state_of(manage(server, "unload", "one", wait=False)) == "unloading"
        assert eventually(lambda: b"data" in connection.recv(1000))  # after the head
        assert states(server)["one"] == "unloading"
        assert state_of(manage(server, "load", "one", wait=False)) == "unloading"
        connection.close()
        assert eventually(lambda: states(server)["one"] == "ready")
    assert loader.num_loads == {"one": 2}


def test_unloading_a_loading_model_waits_for_the_load_and_its_requests(loader, pool):
    with serve_models({"one": loader.spec("one")}, manage=True) as server:
        loader.block("one")
        first = pool.submit(ask, server, "one")
        assert has_waiting_requests(server, "one", 1)
        unloading = pool.submit(manage, server, "unload", "one")
        assert eventually(lambda: server.service.admission.num_open == 2)
        loader.release("one")
        assert answer_text(first.result()) == "hello"
        assert state_of(unloading.result()) == "unloaded"
    assert loader.loaded_bytes == 0


def test_unloading_a_waiting_model_dequeues_it(loader, pool):
    specs = {name: loader.spec(name) for name in ("first", "then")}
    with serve_models(specs, manage=True) as server:
        loader.block("first")
        assert state_of(manage(server, "load", "first", wait=False)) == "loading"
        loading = pool.submit(manage, server, "load", "then")
        assert eventually(lambda: states(server)["then"] == "waiting")
        assert state_of(manage(server, "unload", "then")) == "unloaded"
        assert error_of(loading.result()) == (503, "model_unloaded")
        loader.release("first")
        assert eventually(lambda: states(server)["first"] == "ready")
    assert loader.num_loads == {"first": 1}


def test_unloading_does_not_dequeue_a_model_with_waiting_requests(loader, pool):
    specs = {name: loader.spec(name) for name in ("first", "then")}
    with serve_models(specs, manage=True) as server:
        loader.block("first")
        assert state_of(manage(server, "load", "first", wait=False)) == "loading"
        waiting = pool.submit(ask, server, "then")
        assert has_waiting_requests(server, "then", 1)
        assert state_of(manage(server, "unload", "then")) == "waiting"
        loader.release("first")
        assert answer_text(waiting.result()) == "hello"


def test_a_failed_load_is_reported_and_can_be_retried_at_once(loader):
    with serve_models({"one": loader.spec("one")}, manage=True) as server:
        loader.set_broken("one")
        assert error_of(manage(server, "load", "one")) == (503, "model_failed")
        assert states(server) == {"one": "failed"}
        assert server.get("/readyz").status_code == 200
        loader.set_broken("one", is_broken=False)
        assert error_of(ask(server, "one")) == (503, "model_failed")
        assert state_of(manage(server, "load", "one")) == "ready"
        assert answer_text(ask(server, "one")) == "hello"


def test_a_disconnect_cancels_neither_load_nor_unload(loader):
    with serve_models({"one": loader.spec("one")}, manage=True) as server:
        loader.block("one")
        gone = server.connect({"model": "one"}, path="/v1/models/load")
        assert eventually(lambda: states(server)["one"] == "loading")
        gone.close()
        assert eventually(lambda: server.service.admission.num_open == 0)
        loader.release("one")
        assert eventually(lambda: states(server)["one"] == "ready")
        connection = streaming(server, "one", ENDLESS)
        gone = server.connect({"model": "one"}, path="/v1/models/unload")
        assert eventually(lambda: states(server)["one"] == "unloading")
        gone.close()
        connection.close()
        assert eventually(lambda: states(server)["one"] == "unloaded")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "./folder"}, 404),
        ({"model": "/etc"}, 404),
        ({"model": "demo"}, 404),
        ({}, 400),
        ({"model": 7}, 400),
        ({"model": "one", "wait": "yes"}, 400),
        ({"model": "there"}, 400),
    ],
)
def test_only_configured_models_can_be_loaded_and_unloaded(loader, body, status):
    models = {"one": loader.spec("one"), "there": mock_pipeline()}
    with serve_models(models, manage=True) as server:
        for path in PATHS:
            assert server.post(body, path).status_code == status
        assert answer_text(ask(server, "there")) == "hello"
    assert not loader.num_loads


def test_unknown_fields_are_reported(loader):
    with serve_models({"one": loader.spec("one")}, manage=True) as server:
        answer = manage(server, "load", "one", ttl=300)
        assert answer.headers["x-vlmkit-ignored"] == "ttl"
        body = chat() | {"model": "one"}
        page = {"content-type": "text/plain"}  # sent without a preflight
        assert server.post(body, "/v1/models/unload", headers=page).status_code == 415


def test_management_routes_exist_only_if_the_operator_allows_them(loader):
    with running() as closed, serve_models({"one": loader.spec("one")}, manage=True) as opened:
        for server, status in ((closed, 405), (opened, 404)):
            assert server.post({"model": "none"}, "/v1/models/load").status_code == status
        paths = [set(server.get("/openapi.json").json()["paths"]) for server in (closed, opened)]
        assert paths[1] - paths[0] == set(PATHS)
