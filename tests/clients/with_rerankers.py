"""Clients that rank documents: Cohere's own, and LlamaIndex's for Jina."""

import cohere
import pytest
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.jinaai_rerank import JinaRerank

MODELS = ("mock",)
QUERY = "Which house is red?"
DOCUMENTS = ["The red house.", "Trains run late.", "A house is blue."]


@pytest.fixture(params=[cohere.Client, cohere.ClientV2])
def client(request, server):
    return request.param(api_key="none", base_url=server.url)


def test_the_best_documents_are_ranked_by_their_scores(client):
    found = client.rerank(model="mock", query=QUERY, documents=DOCUMENTS, top_n=2).results
    scores = [each.relevance_score for each in found]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    every = client.rerank(model="mock", query=QUERY, documents=DOCUMENTS).results
    assert every[:2] == found
    assert {each.index for each in every} == {0, 1, 2}


def test_a_wrong_request_raises_the_error_of_its_status(client):
    with pytest.raises(cohere.NotFoundError) as missing:
        client.rerank(model="other", query=QUERY, documents=DOCUMENTS)
    assert "not served here" in missing.value.body["message"]
    with pytest.raises(cohere.BadRequestError):
        client.rerank(model="mock", query=QUERY, documents=[])


def test_jinas_client_gets_the_order_of_cohere(client, server):
    nodes = [NodeWithScore(node=TextNode(text=each)) for each in DOCUMENTS]
    jina = JinaRerank(model="mock", api_key="none", base_url=server.v1, top_n=3)
    ranked = client.rerank(model="mock", query=QUERY, documents=DOCUMENTS).results
    found = jina.postprocess_nodes(nodes, query_str=QUERY)
    assert [each.text for each in found] == [DOCUMENTS[each.index] for each in ranked]
    assert [each.score for each in found] == [each.relevance_score for each in ranked]


def test_jinas_client_raises_the_text_of_an_error(server):
    jina = JinaRerank(model="other", api_key="none", base_url=server.v1)
    with pytest.raises(RuntimeError, match="not served here"):
        jina.postprocess_nodes([NodeWithScore(node=TextNode(text="x"))], query_str=QUERY)
