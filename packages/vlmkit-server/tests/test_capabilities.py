"""``/v1/capabilities`` describes each model correctly: supported, refused and ignored fields."""

import pytest
from bodies import MINIMAL, with_field
from litestar.routes import HTTPRoute
from running_server import chat, mock_pipeline, running

from spelling import SpellingCompiler
from vlmkit.interfaces.sampler import FOLLOWED
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_server.app import create_app
from vlmkit_server.wire.answer_forms import Formed
from vlmkit_server.wire.table import TABLE


def model_capabilities(server, name="mock"):
    models = server.get("/v1/capabilities").json()["models"]
    return next(model for model in models if model["id"] == name)


def test_every_route_with_a_body_is_listed(server):
    routes = [route for route in create_app({}).routes if isinstance(route, HTTPRoute)]
    posted = {r.path for r in routes if "POST" in r.methods and not r.path_parameters}
    of_no_model = {"/v1/files", "/v1/batches", "/v1/messages/batches"}
    assert set(model_capabilities(server)["endpoints"]) == posted - of_no_model


def test_a_model_is_listed_with_the_limits_of_its_pipeline(server):
    model, facts = model_capabilities(server), server.runner().facts
    assert (model["state"], model["modalities"]) == ("ready", ["text", "image"])
    assert model["limits"]["max_model_len"] == facts.limits.max_sequence_tokens
    assert model["limits"]["max_images"] == facts.bounds.max_images
    assert model["limits"]["images"]["max_pixels"] == facts.bounds.images.max_pixels
    assert model["embedding_size"] == facts.limits.hidden_size
    assert model["defaults"]["temperature"] == facts.defaults.temperature


def sampled(names, path):
    """Return all names for chats and a sample for other routes, since requests are slow."""
    return sorted(names)[:: 1 if path == "/v1/chat/completions" else 11]


@pytest.mark.parametrize("path", sorted(MINIMAL))
def test_fields_listed_as_refused_are_refused(server, path):
    endpoint = model_capabilities(server)["endpoints"][path]
    assert not set(endpoint["parameters"]) & set(endpoint["refused"])
    for name in sampled(set(endpoint["refused"]) - set(Formed.__struct_fields__), path):
        answer = server.post(with_field(MINIMAL[path], name, "x"), path)
        assert answer.status_code == 400, name
        error = answer.json()["error"]
        last = name.rpartition(".")[2]
        assert (error.get("param") or name).endswith(last)  # Anthropic's errors have no param
        assert last in error["message"]


@pytest.mark.parametrize("path", sorted(MINIMAL))
def test_refused_fields_are_listed(server, path):
    """Fields of other servers that change the answer are listed, too, though no body has them."""
    endpoint = model_capabilities(server)["endpoints"][path]
    for name in sampled(TABLE, path):
        if "." in name and name not in endpoint["refused"]:
            continue
        if name.startswith("messages."):
            continue  # some roles support it
        if name in {*Formed.__struct_fields__, "json_schema", "regex"}:
            continue  # refused with another message: the model has no constraint compiler
        answer = server.post(with_field(MINIMAL[path], name, 7.5), path).json()
        error = (answer.get("error") if isinstance(answer, dict) else None) or {}
        is_refused = f"{name} is not supported by this server" in error.get("message", "")
        assert is_refused == (name in endpoint["refused"]), name


@pytest.mark.parametrize("path", sorted(MINIMAL))
def test_fields_listed_without_effect_are_accepted_and_reported_or_labels(server, path):
    endpoint = model_capabilities(server)["endpoints"][path]
    assert not set(endpoint["without_effect"]) & {*endpoint["refused"], *endpoint["aliases"]}
    for name in sampled(endpoint["without_effect"], path):
        if "." not in name and name not in endpoint["parameters"]:
            answer = server.post(with_field(MINIMAL[path], name, 7.5), path)
            assert answer.headers["x-vlmkit-ignored"] == name


@pytest.mark.parametrize("path", sorted(MINIMAL))
def test_an_alias_is_listed_with_its_target(server, path):
    endpoint = model_capabilities(server)["endpoints"][path]
    assert set(endpoint["aliases"].values()) <= set(endpoint["parameters"])
    for name in endpoint["aliases"]:
        if name == "json_schema":
            continue  # any object is a valid schema
        wrong = server.post(MINIMAL[path] | {name: {"a": 1}}, path)
        assert wrong.status_code == 400, name
        assert name in wrong.json()["error"]["message"]


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
"""For each field that not every model supports, a value that is not neutral."""


class Simple(MockTokenizer):
    """A tokenizer without options."""

    honours = frozenset()


class Plain(ArraySampler):
    """A sampler that ignores all parameters."""

    ignores = FOLLOWED


@pytest.fixture(scope="module")
def simple():
    """A server whose model supports no optional feature."""
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
def test_fields_that_a_model_does_not_support_are_listed_as_refused(simple, path):
    endpoint = model_capabilities(simple)["endpoints"][path]
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


def test_nested_sampling_parameters_that_the_sampler_ignores_are_listed_as_refused(simple):
    endpoint = model_capabilities(simple)["endpoints"]["/inference/v1/generate"]
    body = {"token_ids": [104], "sampling_params": {"max_tokens": 2}}
    for name in ("temperature", "top_p", "min_p"):
        assert f"sampling_params.{name}" in endpoint["refused"]
        answer = simple.post(
            with_field(body, f"sampling_params.{name}", 0.5), "/inference/v1/generate"
        )
        assert answer.status_code == 400
    assert set(model_capabilities(simple)["sampler"]["ignores"]) == FOLLOWED


@pytest.mark.parametrize("path", sorted(MINIMAL))
def test_listed_parameters_are_known(server, path):
    names = model_capabilities(server)["endpoints"][path]["parameters"]
    for name in set(names) - set(MINIMAL[path]):
        strict = {"x-vlmkit-strict": "1"}
        assert server.post(MINIMAL[path] | {name: None}, path, headers=strict).status_code == 200


def test_output_formats_are_listed_where_they_are_enforced():
    body = chat("which?", guided_choice=["tree"])
    models = {
        "mock": mock_pipeline(),
        "formed": mock_pipeline(constraint=SpellingCompiler),
    }
    with running(models) as server:
        for name, status in (("mock", 400), ("formed", 200)):
            chats = model_capabilities(server, name)["endpoints"]["/v1/chat/completions"]
            assert ("guided_choice" in chats["parameters"]) == (status == 200)
            assert ("guided_choice" in chats["refused"]) == (status == 400)
            assert server.post(body | {"model": name}).status_code == status


def test_a_model_without_images_or_embeddings_is_listed_without_them(monkeypatch):
    import dataclasses

    limits = MockEngine.limits.fget
    blind = property(lambda self: dataclasses.replace(limits(self), hidden_size=0, precision="bf"))
    monkeypatch.setattr(MockEngine, "limits", blind)
    with running({"mock": mock_pipeline(takes_images=False)}) as server:
        model = model_capabilities(server)
        assert (model["modalities"], model["limits"]["max_images"]) == (["text"], 0)
        assert (model["embedding_size"], model["precision"]) == (None, "bf")
        assert model["encoder_precision"] is None
        assert "/v1/embeddings" not in model["endpoints"]
        assert server.post(MINIMAL["/v1/embeddings"], "/v1/embeddings").status_code == 400


def test_the_precision_of_each_component_is_listed(monkeypatch):
    import dataclasses

    limits = MockEngine.limits.fget
    stating = property(lambda self: dataclasses.replace(limits(self), precision="w8a8"))
    monkeypatch.setattr(MockEngine, "limits", stating)
    monkeypatch.setattr(MockVisionEncoder, "precision", "fp32", raising=False)
    with running({"mock": mock_pipeline()}) as server:
        model = model_capabilities(server)
        assert (model["precision"], model["encoder_precision"]) == ("w8a8", "fp32")


def test_a_model_that_is_still_loading_is_listed_without_details():
    with running({"mock": mock_pipeline(), "late": None}) as server:
        late = model_capabilities(server, "late")
        assert late.pop("id") == "late"
        assert late.pop("aliases") == []
        assert late.pop("state") == "waiting"
        assert set(late.values()) == {None}
