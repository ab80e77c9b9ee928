"""The embeddings API as the official client sees it, compared with the Python API."""

import base64

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse
from running_server import eventually, image_part, image_url, mock_pipeline, running, scripted

import vlmkit
from vlmkit.checkpoints.pooling import Pooling

TEXTS = ["A red house.", "Trains run late.", "né"]


def vectors(answer):
    return np.array([each.embedding for each in answer.data], np.float32)


def embed(server, given, **options):
    return server.client().embeddings.create(model="mock", input=given, **options)


def refusal(server, body):
    answer = server.post({"model": "mock"} | body, "/v1/embeddings")
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_the_client_receives_the_embeddings_of_the_python_api(server, form):
    expected = np.array(vlmkit.Model(server.runner()).embed(TEXTS))
    options = {} if form is None else {"encoding_format": form}
    answer = embed(server, TEXTS, **options)
    if form == "base64":
        found = [np.frombuffer(base64.b64decode(each.embedding), "<f4") for each in answer.data]
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(vectors(answer), expected, rtol=1e-6)
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert (
        answer.usage.prompt_tokens
        == answer.usage.total_tokens
        == sum(len(text.encode()) + 1 for text in TEXTS)
    )


def test_token_ids_have_the_same_embedding_as_their_text(server):
    ids = [server.post({"prompt": text}, "/tokenize").json()["tokens"] for text in TEXTS]
    expected = vectors(embed(server, TEXTS))
    np.testing.assert_array_equal(vectors(embed(server, ids)), expected)
    np.testing.assert_array_equal(vectors(embed(server, ids[0])), expected[:1])
    np.testing.assert_array_equal(vectors(embed(server, TEXTS[0])), expected[:1])


def test_a_conversation_with_images_has_an_embedding(server):
    parts = [image_part(image_url()), {"type": "text", "text": "a house"}]
    body = {"model": "mock", "messages": [{"role": "user", "content": parts}]}
    answer = server.post(body, "/v1/embeddings").json()
    python = vlmkit.Model(server.runner()).embed(["a house"], images=[[opened(8, 6)]])
    np.testing.assert_allclose(answer["data"][0]["embedding"], python[0], rtol=1e-6)
    details = answer["usage"]["prompt_tokens_details"]
    assert (details["image_tokens"], details["image_tokens_each"]) == (4, [4])


def opened(width, height):
    from PIL import Image

    return Image.new("RGB", (width, height), "teal")


def test_an_answer_matches_openais_type(server):
    answer = server.post({"model": "mock", "input": TEXTS}, "/v1/embeddings").json()
    CreateEmbeddingResponse.model_validate(answer, strict=True)


def test_more_texts_than_the_engine_can_queue_are_embedded_in_order():
    pipeline = mock_pipeline(max_sequences=2, max_waiting=2)
    with running({"mock": pipeline}) as server:
        texts = [f"text {number}" for number in range(40)]
        expected = np.array(vlmkit.Model(pipeline).embed(texts))
        np.testing.assert_allclose(vectors(embed(server, texts)), expected, rtol=1e-6)
        assert eventually(server.is_idle)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "x", "messages": [{"role": "user", "content": "x"}]}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [1, "x"]}, "input"),
        ({"input": ["x", [99_999]]}, "input[1]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": "x", "dimensions": 4}, "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x", "normalize": False}, "normalize"),
        ({"input": "x", "embd_normalize": -1}, "embd_normalize"),
        ({"input": "x", "embd_normalize": 2, "normalize": False}, "normalize"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": ["y", "x" * 100_000]}, "input[1]"),
    ],
)
def test_an_unsupported_input_is_refused_by_name(server, body, param):
    assert refusal(server, body)["param"] == param


def test_dimensions_equal_to_the_embedding_size_are_accepted(server):
    num = server.runner().facts.limits.hidden_size
    assert vectors(embed(server, "x", dimensions=num)).shape == (1, num)


@pytest.mark.parametrize("fields", [{"normalize": True}, {"embd_normalize": 2}])
def test_embeddings_are_normalised_on_request(fields):
    plain = mock_pipeline(pooling=lambda: Pooling(normalises=False))
    with running({"mock": plain, "scaled": mock_pipeline()}) as server:
        bodies = [{"model": name, "input": TEXTS} for name in ("mock", "scaled")]
        long, scaled = (server.post(body, "/v1/embeddings").json()["data"] for body in bodies)
        normalised = [
            server.post(body | fields, "/v1/embeddings").json()["data"] for body in bodies
        ]
    lengths = np.linalg.norm([each["embedding"] for each in long], axis=1)
    assert (abs(lengths - 1) > 0.01).all()
    assert normalised[1] == scaled
    np.testing.assert_allclose(
        [each["embedding"] for each in normalised[0]],
        [each["embedding"] for each in scaled],
        rtol=1e-5,
        atol=1e-7,
    )


def test_unknown_keys_are_reported(server):
    answer = server.post({"model": "mock", "input": "x", "flavour": 1}, "/v1/embeddings")
    assert answer.headers["x-vlmkit-ignored"] == "flavour"


def test_a_failing_text_ends_the_whole_request():
    with running() as server:
        texts = [scripted(text="x"), *TEXTS, "x" * 100_000]
        assert refusal(server, {"input": texts})["param"] == "input[4]"
        assert eventually(server.is_idle)


def test_a_disconnect_aborts_all_texts_of_the_request():
    pipeline = mock_pipeline(max_sequences=1)
    with running({"mock": pipeline}) as server:
        blocked = pipeline.submit(
            vlmkit.Model(pipeline).request(scripted(text="x", tokens=4000, latency_s=0.01))
        )
        assert eventually(lambda: pipeline.stats().num_running == 1)
        connection = server.connect({"model": "mock", "input": TEXTS}, path="/v1/embeddings")
        assert eventually(lambda: pipeline.stats().num_waiting == 1)
        connection.close()
        assert eventually(lambda: pipeline.stats().num_waiting == 0)
        blocked.abort()
        assert eventually(server.is_idle)
