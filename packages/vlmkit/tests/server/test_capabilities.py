"""``/v1/capabilities`` says what is so: of each model, what is taken and what is refused."""

import json

import pytest
from litestar.routes import HTTPRoute
from running_server import chat, mock_pipeline, picture, running
from spelling import SpellingCompiler

from vlmkit.pipeline import Pipeline
from vlmkit.running.sampler import ArraySampler
from vlmkit.seams.sampler import FOLLOWED
from vlmkit.server.app import create_app
from vlmkit.server.fields.forms import Formed
from vlmkit.server.fields.ignored import CHANGING
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
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


def with_field(body, place, value):
    """Return a body that has a field, in the first thing that can hold it."""
    *parents, name = place.split(".")
    body = json.loads(json.dumps(body))
    if parents[:1] == ["messages"] and "messages" not in body:
        body = chat()
    inner = body
    for parent in parents:
        if parent == "content":
            inner[parent] = [{"type": "image_url", "image_url": {"url": picture()}}]
            inner = inner[parent][0]
        elif parent == "messages":
            inner = inner[parent][0]
        else:
            inner = inner.setdefault(parent, {})
    inner[name] = value
    if place in OF_ASSISTANT:
        inner["role"] = "assistant"
    return body


OF_ASSISTANT = {
    f"messages.{name}" for name in ("audio", "function_call", "refusal", "partial", "prefix")
}


@pytest.mark.parametrize("path", sorted(MINIMAL))
def test_what_is_told_to_be_refused_is_refused(server, path):
    endpoint = told(server)["endpoints"][path]
    assert not set(endpoint["parameters"]) & set(endpoint["refused"])
    for name in set(endpoint["refused"]) - set(Formed.__struct_fields__):
        answer = server.post(with_field(MINIMAL[path], name, "x"), path)
        assert answer.status_code == 400, name
        error = answer.json()["error"]
        last = name.rpartition(".")[2]
        assert (error.get("param") or name).endswith(last)  # Anthropic's errors have none
        assert last in error["message"]


@pytest.mark.parametrize("path", sorted(MINIMAL))
def test_what_is_refused_by_name_is_told_to_be(server, path):
    """Fields by which other servers change the answer, too, which have no place in a body here."""
    endpoint = told(server)["endpoints"][path]
    for name in CHANGING:
        if "messages" not in MINIMAL[path] and name.startswith("messages."):
            continue
        error = server.post(with_field(MINIMAL[path], name, "x"), path).json().get("error", {})
        is_refused = error.get("message", "").endswith("is not supported by this server")
        assert is_refused == (name in endpoint["refused"]), name


SAYING = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.5,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 1.0},
    "min_tokens": 2,
    "add_generation_prompt": False,
    "chat_template_kwargs": {"thinking": True},
    "max_image_tokens": 5,
    "return_places": True,
    "skip_special_tokens": False,
    "guided_choice": ["a"],
    "structured_outputs": {"choice": ["a"]},
}
"""A value of each field that not every model can be asked, with which it says something."""


class Simple(MockTokenizer):
    """A tokenizer that honours no option."""

    honours = frozenset()


class Plain(ArraySampler):
    """A sampler that follows no parameter."""

    ignores = FOLLOWED


@pytest.fixture(scope="module")
def simple():
    """A server whose model can be asked for nothing that a model need not know."""
    pipeline = Pipeline(
        tokenizer=Simple(),
        engine=MockEngine(),
        media_encoder=MockVisionEncoder(),
        sampler=Plain(),
        name="mock",
    )
    with running({"mock": pipeline}, allow_generate=True) as server:
        yield server


@pytest.mark.parametrize("path", sorted(MINIMAL))
def test_what_a_model_cannot_be_asked_is_told_to_be_refused(simple, path):
    endpoint = told(simple)["endpoints"][path]
    for name, value in SAYING.items():
        if name not in {*endpoint["parameters"], *endpoint["refused"]}:
            continue
        body = MINIMAL[path] | ({"max_tokens": 9} if "max_tokens" in MINIMAL[path] else {})
        if name in ("max_image_tokens", "return_places"):
            if "messages" not in body:
                continue
            body = with_field(body, "messages.content.image_url.detail", "low")
        answer = simple.post(body | {name: value}, path)
        is_refused = answer.status_code == 400
        assert is_refused == (name in endpoint["refused"]), (name, answer.text)


def test_what_a_sampler_ignores_is_told_of_parameters_in_another_field_too(simple):
    endpoint = told(simple)["endpoints"]["/inference/v1/generate"]
    body = {"token_ids": [104], "sampling_params": {"max_tokens": 2}}
    for name in ("temperature", "top_p", "min_p"):
        assert f"sampling_params.{name}" in endpoint["refused"]
        answer = simple.post(
            with_field(body, f"sampling_params.{name}", 0.5), "/inference/v1/generate"
        )
        assert answer.status_code == 400
    assert set(told(simple)["sampler"]["ignores"]) == FOLLOWED


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
