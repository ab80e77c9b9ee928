"""``/v1/capabilities`` says what is so: of each model, what is taken and what is refused."""

import pytest
from litestar.routes import HTTPRoute
from running_server import chat, mock_pipeline, running
from spelling import SpellingCompiler

from vlmkit.server.app import create_app
from vlmkit.server.fields.forms import Formed
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.vision_encoder import MockVisionEncoder

MINIMAL = {
    "/v1/chat/completions": chat(),
    "/v1/chat/completions/render": chat(),
    "/v1/completions": {"model": "mock", "prompt": "x"},
    "/v1/completions/render": {"model": "mock", "prompt": "x"},
    "/v1/embeddings": {"model": "mock", "input": "x"},
    "/v1/messages": chat(max_tokens=1),
    "/v1/messages/count_tokens": chat(),
    "/v1/messages/render": chat(max_tokens=1),
    "/v1/responses": {"model": "mock", "input": "x"},
    "/v1/responses/render": {"model": "mock", "input": "x"},
    "/v1/responses/input_tokens": {"model": "mock", "input": "x"},
    "/tokenize": {"model": "mock", "prompt": "x"},
    "/detokenize": {"model": "mock", "tokens": []},
}


def told(server, name="mock"):
    models = server.get("/v1/capabilities").json()["models"]
    return next(model for model in models if model["id"] == name)


def test_every_route_that_takes_a_body_is_told(server):
    routes = [route for route in create_app({}).routes if isinstance(route, HTTPRoute)]
    posted = {r.path for r in routes if "POST" in r.methods and not r.path_parameters}
    of_no_model = {"/v1/files", "/v1/batches", "/v1/messages/batches"}
    assert set(told(server)["endpoints"]) == posted - of_no_model


def test_a_model_is_described_by_what_runs(server):
    model, facts = told(server), server.runner().facts
    assert (model["state"], model["modalities"]) == ("ready", ["text", "image"])
    assert model["limits"]["max_model_len"] == facts.limits.max_sequence_tokens
    assert model["limits"]["max_images"] == facts.bounds.max_images
    assert model["limits"]["images"]["max_pixels"] == facts.bounds.images.max_pixels
    assert model["embedding_size"] == facts.limits.hidden_size
    assert model["defaults"]["temperature"] == facts.defaults.temperature


@pytest.mark.parametrize("path", sorted(MINIMAL))
def test_what_is_told_to_be_refused_is_refused(server, path):
    endpoint = told(server)["endpoints"][path]
    assert not set(endpoint["parameters"]) & set(endpoint["refused"])
    for name in set(endpoint["refused"]) - set(Formed.__struct_fields__):
        answer = server.post(MINIMAL[path] | {name: "x"}, path)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error.get("param", name) == name  # Anthropic's errors have no place for it
        assert error["message"].startswith(name)


@pytest.mark.parametrize("path", sorted(MINIMAL))
def test_what_is_told_to_be_taken_is_known(server, path):
    names = told(server)["endpoints"][path]["parameters"]
    for name in set(names) - set(MINIMAL[path]):
        strict = {"x-vlmkit-strict": "1"}
        assert server.post(MINIMAL[path] | {name: None}, path, headers=strict).status_code == 200


def test_forms_are_told_where_they_can_be_kept_to():
    body = chat("which?", guided_choice=["tree"])
    models = {
        "mock": mock_pipeline(),
        "formed": mock_pipeline(constraint=SpellingCompiler),
    }
    with running(models) as server:
        for name, status in (("mock", 400), ("formed", 200)):
            chats = told(server, name)["endpoints"]["/v1/chat/completions"]
            assert ("guided_choice" in chats["parameters"]) == (status == 200)
            assert ("guided_choice" in chats["refused"]) == (status == 400)
            assert server.post(body | {"model": name}).status_code == status


def test_a_model_without_eyes_or_vectors_says_so(monkeypatch):
    import dataclasses

    limits = MockEngine.limits.fget
    blind = property(lambda self: dataclasses.replace(limits(self), hidden_size=0, precision="bf"))
    monkeypatch.setattr(MockEngine, "limits", blind)
    with running({"mock": mock_pipeline(takes_images=False)}) as server:
        model = told(server)
        assert (model["modalities"], model["limits"]["max_images"]) == (["text"], 0)
        assert (model["embedding_size"], model["precision"]) == (None, "bf")
        assert model["encoder_precision"] is None
        assert "/v1/embeddings" not in model["endpoints"]
        assert server.post(MINIMAL["/v1/embeddings"], "/v1/embeddings").status_code == 400


def test_the_precision_of_each_part_is_told(monkeypatch):
    import dataclasses

    limits = MockEngine.limits.fget
    stating = property(lambda self: dataclasses.replace(limits(self), precision="w8a8"))
    monkeypatch.setattr(MockEngine, "limits", stating)
    monkeypatch.setattr(MockVisionEncoder, "precision", "fp32", raising=False)
    with running({"mock": mock_pipeline()}) as server:
        model = told(server)
        assert (model["precision"], model["encoder_precision"]) == ("w8a8", "fp32")


def test_a_model_that_still_loads_is_named():
    with running({"mock": mock_pipeline(), "late": None}) as server:
        late = told(server, "late")
        assert late.pop("id") == "late"
        assert late.pop("aliases") == []
        assert late.pop("state") == "waiting"
        assert set(late.values()) == {None}
