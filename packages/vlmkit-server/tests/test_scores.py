"""Rankings and scores over HTTP, by embeddings and by yes and no."""

import base64
import dataclasses
import math

import numpy as np
import pytest
from running_server import (
    image_url,
    mock_pipeline,
    recorded_requests,
    running,
)
from two_keys import headers_of, thread_with_keys

import vlmkit
from vlmkit.types.message import TextPart
from vlmkit_mock.engine import MockEngine
from vlmkit_server.apis.builtin import APIS
from vlmkit_server.apis.scores.items import Item
from vlmkit_server.apis.scores.route import ScoresApi
from vlmkit_server.apis.scores.scoring import pair_conversation
from vlmkit_server.apis.scores.settings import ScoresSettings
from vlmkit_server.apis.scores.wire import MAX_ITEMS

QUERY = "Which house is red?"
DOCUMENTS = ["The red house.", "Trains run late.", "A house is blue."]
RERANKS = ("/v1/rerank", "/rerank", "/v2/rerank")
SCORES = ("/v1/score", "/score")


def post(server, path, **body):
    answer = server.post({"model": "mock"} | body, path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def rank(server, **body):
    return post(server, "/v1/rerank", **({"query": QUERY, "documents": DOCUMENTS} | body))


def score(server, **body):
    return [each["score"] for each in post(server, "/v1/score", **body)["data"]]


def refused(server, path, **body):
    answer = server.post({"model": "mock"} | body, path)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def embedded(server, texts):
    data = post(server, "/v1/embeddings", input=texts)["data"]
    return np.array([each["embedding"] for each in data])


def cosines(one, others):
    lengths = np.linalg.norm(one) * np.linalg.norm(others, axis=1)
    return (others @ one / lengths).tolist()


@pytest.mark.parametrize("path", RERANKS)
def test_documents_are_ranked_by_the_cosine_of_their_embeddings(server, path):
    first, *others = embedded(server, [QUERY, *DOCUMENTS])
    expected = cosines(first, np.array(others))
    answer = post(server, path, query=QUERY, documents=DOCUMENTS)
    found = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert [found[index] for index in range(3)] == pytest.approx(expected, rel=1e-5)
    assert list(found) == sorted(range(3), key=lambda index: -expected[index])
    assert [each["document"]["text"] for each in answer["results"]] == [
        DOCUMENTS[each["index"]] for each in answer["results"]
    ]
    assert answer["score_method"] == "embedding"
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"]


@pytest.mark.parametrize("path", SCORES)
@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"),
              ("data_1", "data_2")]
)  # fmt: skip
def test_each_pair_has_the_cosine_of_its_embeddings(server, path, names):
    first, *others = embedded(server, [QUERY, *DOCUMENTS])
    expected = cosines(first, np.array(others))
    answer = post(server, path, **dict(zip(names, (QUERY, DOCUMENTS), strict=True)))
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected, rel=1e-5)
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    assert {each["object"] for each in answer["data"]} == {"score"}


def test_as_many_queries_as_documents_are_paired_in_order(server):
    pairs = score(server, text_1=DOCUMENTS, text_2=DOCUMENTS[::-1])
    singles = [
        score(server, text_1=one, text_2=other)[0]
        for one, other in zip(DOCUMENTS, DOCUMENTS[::-1], strict=True)
    ]
    assert pairs == pytest.approx(singles, rel=1e-6)


def test_a_text_has_the_same_score_in_every_form_that_a_document_may_have(server):
    text = DOCUMENTS[0]
    forms = [text, {"text": text}, {"content": [{"type": "text", "text": text}]}]
    first, *others = score(server, text_1=QUERY, text_2=forms)
    assert others == [first, first]


def test_an_image_is_scored_as_the_message_that_holds_it(server):
    url = image_url()
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": "mock", "messages": [{"role": "user", "content": [part]}]}
    shown = server.post(body, "/v1/embeddings").json()["data"][0]["embedding"]
    expected = cosines(embedded(server, [QUERY])[0], np.array([shown]))
    plain = url.partition(",")[2]
    forms = [{"image": url}, {"image": plain}, {"content": [part]}]
    assert score(server, text_1=QUERY, text_2=forms) == pytest.approx(expected * 3, rel=1e-5)
    (found,) = rank(server, documents=[{"image": url}])["results"]
    assert found["document"] == {"text": None}


def test_yes_and_no_are_scored_after_the_prompt_of_the_pair(server, monkeypatch):
    with recorded_requests(server, monkeypatch) as requests:
        answer = rank(server, score_method="yes_no", instruction="Colours only.")
    assert answer["score_method"] == "yes_no"
    texts = []
    for request in requests:
        assert (request.task, tuple(request.continuations)) == ("score", ("yes", "no"))
        system, user = request.messages
        assert system.text == ScoresSettings().system_prompt
        texts.append(user.text)
    assert sorted(texts) == sorted(
        f"<Instruct>: Colours only.\n<Query>: {QUERY}\n<Document>: {text}" for text in DOCUMENTS
    )
    scores = [each["relevance_score"] for each in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < each < 1 for each in scores)


def test_a_score_by_yes_and_no_is_the_probability_of_yes_among_the_two(server):
    documents = [Item("d", [TextPart(text)]) for text in DOCUMENTS]
    query = Item("q", [TextPart(QUERY)])
    settings = ScoresSettings()
    expected = []
    for document in documents:
        conversation = pair_conversation(query, document, settings.system_prompt, "")
        messages = [
            {"role": each.role, "content": "".join(part.text for part in each.parts)}
            for each in conversation.messages
        ]
        yes, no = vlmkit.Model(server.runner()).score(messages, ["yes", "no"])
        expected.append(math.exp(yes.logprob) / (math.exp(yes.logprob) + math.exp(no.logprob)))
    found = score(server, text_1=QUERY, text_2=DOCUMENTS, score_method="yes_no")
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_operator_names_models_that_say_yes_or_no():
    settings = ScoresSettings(yes_no_models=("mock",), system_prompt="Yes or no?", instruction="I.")
    with running(apis=APIS | {"scores": ScoresApi(settings)}) as server:
        assert rank(server)["score_method"] == "yes_no"
        assert rank(server, score_method="embedding")["score_method"] == "embedding"


def test_a_model_without_embeddings_says_yes_or_no(monkeypatch):
    limits = MockEngine.limits.fget
    without = property(lambda engine: dataclasses.replace(limits(engine), hidden_size=0))
    monkeypatch.setattr(MockEngine, "limits", without)
    with running() as server:
        assert rank(server)["score_method"] == "yes_no"
        error = refused(server, "/v1/rerank", query="x", documents=["y"], score_method="embedding")
        assert "gives no embeddings" in error["message"]


def test_an_instruction_is_refused_where_embeddings_are_compared(server):
    error = refused(server, "/v1/score", text_1="x", text_2="y", instruction="Colours only.")
    assert (error["param"], error["code"]) == ("instruction", "unsupported_parameter")


def test_top_n_bounds_the_results_and_zero_does_not(server):
    best = rank(server)["results"]
    assert rank(server, top_n=2)["results"] == best[:2]
    assert rank(server, top_n=0)["results"] == rank(server, top_n=99)["results"] == best


def test_documents_are_left_out_on_request(server):
    assert all("document" not in each for each in rank(server, return_documents=False)["results"])


LONG = "x" * 40_000  # over the context of the mock


@pytest.mark.parametrize(
    ("documents", "param"),
    [
        (["a", LONG], "documents[1]"),
        (["a", {"text": LONG}], "documents[1]"),
        (["a", {}], "documents[1]"),
        (["a", {"text": "x", "content": [{"type": "text", "text": "y"}]}], "documents[1]"),
        (["a", {"image": base64.b64encode(b"no image").decode()}], "documents[1].image"),
        (["a", {"image": "https://127.0.0.1/x.png"}], "documents[1].image"),
        (
            ["a", {"content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}],
            "documents[1].content[0].image_url",
        ),
        ([], "documents"),
        (["a"] * (MAX_ITEMS + 1), "documents"),
        ([7], "documents[0]"),
    ],
)
@pytest.mark.parametrize("method", ["embedding", "yes_no"])
def test_an_error_names_the_document_and_none_of_its_text(server, documents, param, method):
    error = refused(server, "/v1/rerank", query="x", documents=documents, score_method=method)
    assert error["param"] == param
    assert "xxx" not in error["message"]


@pytest.mark.parametrize("path", [*RERANKS, *SCORES])
def test_an_error_has_its_text_where_clients_of_jina_and_of_cohere_read_it(server, path):
    """Three clients of Jina raise ``detail``, without which they fail with a KeyError."""
    answer = server.post({"model": "other", "query": "x", "documents": ["y"], "text_1": "x"}, path)
    assert answer.status_code in (400, 404)
    body = answer.json()
    assert set(body) == {"error", "detail", "message"}
    assert body["detail"] == body["message"] == body["error"]["message"]


def test_too_many_characters_in_all_are_refused_before_anything_is_computed(monkeypatch):
    with running({"mock": mock_pipeline()}, max_text_chars=100) as server:
        with recorded_requests(server, monkeypatch) as requests:
            documents = ["x" * 60, "y" * 60]
            error = refused(server, "/v1/rerank", query="x", documents=documents)
        assert (error["param"], requests) == ("documents[1]", [])


def test_a_query_counts_for_the_characters_of_each_prompt_that_repeats_it(monkeypatch):
    body = {"query": "x" * 20, "documents": ["y" * 9, "z" * 9, "w" * 9]}
    with running({"mock": mock_pipeline()}, max_text_chars=70) as server:
        assert len(rank(server, **body)["results"]) == 3
        with recorded_requests(server, monkeypatch) as requests:
            error = refused(server, "/v1/rerank", score_method="yes_no", **body)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "query")
        assert requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"query": "x", "documents": [{"image": image_url(9, 9)}] * 4},
        {"query": {"image": image_url(9, 9)}, "documents": ["x"] * 4, "score_method": "yes_no"},
    ],
    ids=["documents", "query"],
)
def test_the_images_of_all_prompts_have_the_pixels_of_one_request(fields):
    with running({"mock": mock_pipeline()}, max_request_pixels=4 * 81) as server:
        assert len(rank(server, **fields)["results"]) == 4
    with running({"mock": mock_pipeline()}, max_request_pixels=4 * 81 - 1) as server:
        error = refused(server, "/v1/rerank", **fields)
        assert error["code"] == "image_too_large"
        assert error["param"] in {f"documents[{n}]" for n in range(4)}  # they are opened at once


def test_documents_of_any_length_need_no_memory_for_log_probabilities():
    with running({"mock": mock_pipeline()}, max_logprob_bytes=40_000) as server:
        body = {"documents": ["a long document " * 40] * 8, "score_method": "yes_no"}
        assert len(rank(server, **body)["results"]) == 8


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text_1": "x"}, "text_1"),
        ({"text_1": "x", "documents": "y"}, "documents"),
        ({"text_1": "x", "text_2": "y", "queries": "z"}, "queries"),
        ({"text_1": ["x", "y"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": ["x", "y"], "text_2": "a"}, "text_1"),
        ({}, "text_1"),
    ],
)
def test_fields_that_make_no_pairs_are_refused(server, fields, param):
    assert refused(server, "/v1/score", **fields)["param"] == param


def test_only_keys_with_the_scope_embed_may_score(tmp_path):
    (chats,) = headers_of(tmp_path, "a", scopes=("chat",))
    (embeds,) = headers_of(tmp_path, "b", scopes=("embed",))
    with thread_with_keys(tmp_path) as server:
        for path in (*RERANKS, *SCORES):
            body = {"model": "mock"}
            body |= {"query": "x", "documents": ["y"]} if "rank" in path else {}
            body |= {} if "rank" in path else {"text_1": "x", "text_2": "y"}
            assert server.post(body, path, headers=chats).status_code == 403
            assert server.post(body, path, headers=embeds).status_code == 200


def test_more_documents_than_the_engine_holds_are_ranked():
    with running({"mock": mock_pipeline(max_sequences=2, max_waiting=4)}) as server:
        documents = [f"document {number}" for number in range(40)]
        assert len(rank(server, documents=documents)["results"]) == 40
        assert len(rank(server, documents=documents, score_method="yes_no")["results"]) == 40
