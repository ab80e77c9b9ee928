"""The APIs in front of this engine: tools, schemas, log probabilities, embeddings and seeds."""

import base64
import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import zoo

pytest.importorskip("llguidance")
sys.path.append(str(Path(__file__).parents[3] / "packages/vlmkit-server/tests"))

from running_server import Running

import vlmkit

pytestmark = [pytest.mark.torch, pytest.mark.server]

slow = pytest.mark.slow
NUM_TOP = 5
HIDDEN = 64
TEXTS = ["A red house.", "Trains run late.", "né"]
SCHEMA = {
    "type": "object",
    "properties": {
        "shape": {"enum": ["circle", "square"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["shape", "count"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "mark", "parameters": SCHEMA}}]


@pytest.fixture
def client(server: Running) -> openai.OpenAI:
    """A client of the official package."""
    return server.client()


def shown(number: int) -> dict[str, Any]:
    written = io.BytesIO()
    zoo.picture(number, 60, 40).save(written, "PNG")
    url = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def chat(client: openai.OpenAI, *, image: int | None = None, **fields: Any) -> Any:
    content: list[Any] = [] if image is None else [shown(image)]
    content.append({"type": "text", "text": "What is there?"})
    settings = {"max_tokens": 12, "temperature": 1.0} | fields
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(model="mock", messages=messages, **settings)


def check_object(text: str) -> None:
    found = json.loads(text)
    assert list(found) == ["shape", "count"]
    assert found["shape"] in ("circle", "square")
    assert type(found["count"]) is int
    assert 0 <= found["count"] <= 9


# Schemas and tools


def some(num: int, more: int) -> list[Any]:
    """Return seeds, of which the later ones are slow."""
    return [*range(num), *(pytest.param(seed, marks=slow) for seed in range(num, more))]


@pytest.mark.parametrize("seed", some(1, 10))
def test_an_enforced_schema_is_met_with_and_without_an_image(
    client: openai.OpenAI, seed: int
) -> None:
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    for image in (None, seed):
        fields = {"response_format": named, "max_tokens": 200, "seed": seed, "image": image}
        (choice,) = chat(client, **fields).choices
        check_object(choice.message.content)
        assert choice.finish_reason == "stop"
        pieces = [part.choices[0].delta.content for part in chat(client, **fields, stream=True)]
        assert "".join(filter(None, pieces)) == choice.message.content


@pytest.mark.parametrize("seed", some(1, 10))
def test_a_required_call_has_valid_arguments_and_no_text(client: openai.OpenAI, seed: int) -> None:
    fields = {"tools": TOOLS, "max_tokens": 250, "seed": seed, "parallel_tool_calls": False}
    for wanted in ("required", {"type": "function", "function": {"name": "mark"}}):
        (choice,) = chat(client, tool_choice=wanted, **fields).choices
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert call.function.name == "mark"
        check_object(call.function.arguments)
        streamed = chat(client, tool_choice=wanted, stream=True, **fields)
        deltas = [piece for part in streamed for piece in part.choices[0].delta.tool_calls or ()]
        arguments = "".join(delta.function.arguments or "" for delta in deltas)
        assert arguments == call.function.arguments


@slow
def test_calls_and_results_are_sent_back_unchanged(client: openai.OpenAI) -> None:
    question: Any = {"role": "user", "content": "Mark it."}
    fields: Any = {"model": "mock", "tools": TOOLS, "max_tokens": 250, "seed": 1}
    fields["parallel_tool_calls"] = False  # a later one could be cut
    create = client.chat.completions.create
    message = create(messages=[question], tool_choice="required", **fields).choices[0].message
    assert message.tool_calls
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "done"} for call in message.tool_calls
    ]
    whole: Any = [question, message, *results, {"role": "user", "content": "And?"}]
    after = create(messages=whole, tool_choice="none", **fields | {"max_tokens": 8})
    assert after.choices[0].message.tool_calls is None
    assert after.usage.completion_tokens <= 8


@slow
def test_a_request_without_a_required_call_has_none_if_its_tools_are_off(
    client: openai.OpenAI,
) -> None:
    for seed in range(5):
        answer = chat(client, tools=TOOLS, tool_choice="none", seed=seed, max_tokens=40)
        assert answer.choices[0].message.tool_calls is None


# Log probabilities


@pytest.mark.parametrize("image", [None, pytest.param(1, marks=slow)])
def test_log_probabilities_agree_with_their_alternatives(
    client: openai.OpenAI, image: int | None
) -> None:
    fields = {"image": image, "logprobs": True, "top_logprobs": NUM_TOP, "seed": 3}
    whole = chat(client, **fields).choices[0].logprobs.content
    for each in whole:
        top = [other.logprob for other in each.top_logprobs]
        assert len(top) == NUM_TOP
        assert top == sorted(top, reverse=True)
        assert sum(map(math.exp, top)) < 1 + 1e-6
        assert each.logprob in top or each.logprob <= top[-1]
    streamed = [
        entry
        for part in chat(client, **fields, stream=True)
        if part.choices[0].logprobs
        for entry in part.choices[0].logprobs.content
    ]
    assert [each.logprob for each in streamed] == pytest.approx(
        [each.logprob for each in whole], abs=1e-3
    )
    greedy = chat(client, **fields | {"temperature": 0}).choices[0].logprobs.content
    assert all(each.logprob == each.top_logprobs[0].logprob for each in greedy)


@slow
def test_log_probabilities_of_an_answer_equal_those_of_its_echo(client: openai.OpenAI) -> None:
    complete: Any = client.completions.create
    own = {"extra_body": {"return_token_ids": True}}
    done = complete(
        model="mock", prompt=TEXTS[0], max_tokens=8, logprobs=1, seed=2, temperature=1.0, **own
    ).choices[0]
    ids = [*done.prompt_token_ids, *done.token_ids]
    echo = complete(model="mock", prompt=ids, max_tokens=0, echo=True, logprobs=1).choices[0]
    found = echo.logprobs.token_logprobs[len(done.prompt_token_ids) :]
    assert found == pytest.approx(done.logprobs.token_logprobs, abs=1e-3)


# Embeddings


def embedded(client: openai.OpenAI, given: Any, **fields: Any) -> Any:
    answer = client.embeddings.create(model="mock", input=given, **fields)
    return np.array([each.embedding for each in answer.data], np.float32)


def test_embeddings_have_the_width_of_the_model_and_repeat(
    client: openai.OpenAI, server: Running
) -> None:
    found = embedded(client, TEXTS, encoding_format="float")
    assert found.shape == (len(TEXTS), HIDDEN)
    np.testing.assert_allclose(embedded(client, TEXTS), found, atol=1e-4)
    np.testing.assert_allclose(vlmkit.Model(server.runner()).embed(TEXTS), found, atol=1e-4)
    alone = [embedded(client, text)[0] for text in TEXTS]
    np.testing.assert_allclose(alone, found, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


@slow
def test_an_image_changes_the_embedding_of_a_conversation(server: Running) -> None:
    def vector(*content: dict[str, Any]) -> Any:
        body = {"model": "mock", "messages": [{"role": "user", "content": list(content)}]}
        answer = server.post(body, "/v1/embeddings")
        assert answer.status_code == 200, answer.text
        return np.array(answer.json()["data"][0]["embedding"])

    text = {"type": "text", "text": "a house"}
    plain, one, again, other = (
        vector(*images, text) for images in ([], [shown(1)], [shown(1)], [shown(2)])
    )
    np.testing.assert_allclose(one, again, atol=1e-4)
    assert np.abs(one - plain).max() > 1e-2
    assert np.abs(one - other).max() > 1e-2


# Seeds and choices


def texts(answer: Any) -> list[str]:
    return [choice.message.content for choice in answer.choices]


@pytest.mark.parametrize("seed", some(1, 6))
def test_a_seed_repeats_each_of_several_choices(client: openai.OpenAI, seed: int) -> None:
    one, other = (chat(client, n=3, seed=seed, image=1) for _ in range(2))
    assert texts(one) == texts(other)
    assert len(set(texts(one))) == 3
    assert one.usage.completion_tokens == 3 * 12
    apart = [chat(client, seed=seed + 100 + each, image=1) for each in range(3)]
    assert texts(one) != [texts(answer)[0] for answer in apart]


@slow
def test_an_answer_ends_before_a_stop_string(client: openai.OpenAI) -> None:
    (whole,) = texts(chat(client, seed=5, max_tokens=30))
    stop = next(iter(re.findall("[a-z]{2}", whole)))
    (cut,) = texts(chat(client, seed=5, max_tokens=30, stop=stop))
    assert cut == whole[: whole.index(stop)]
