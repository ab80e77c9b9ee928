"""The response buffer: memory of answers is reserved before any computation, and released."""

import tracemalloc

import pytest
from running_server import chat, eventually, running, scripted

from vlmkit.types.sample import Logprob, Sample
from vlmkit_server.admission.reservations import LOGPROB_BYTES, TOKEN_BYTES

SLOW = scripted(text="x", tokens=4000, latency_s=0.01)
EACH = TOKEN_BYTES + 20 * LOGPROB_BYTES


def chat_with_logprobs(text="hello", *, max_tokens=100, n=1, **fields):
    return chat(text, max_tokens=max_tokens, n=n, logprobs=True, top_logprobs=20, **fields)


def quota(server):
    return server.service.admission.limits.logprob_bytes


def test_an_answer_over_the_whole_budget_is_refused_with_its_field():
    with running(max_logprob_bytes=1_000_000) as server:
        refused = server.post(chat_with_logprobs(SLOW, max_tokens=64, n=8))
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "answer_too_large")
        assert (error["param"], str(512 * EACH) in error["message"]) == ("max_tokens", True)
        assert server.runner().stats().counters["num_tokens_computed"] == 0
        assert server.post(chat_with_logprobs(max_tokens=64, n=4)).status_code == 200
        assert server.post(chat_with_logprobs(max_tokens=64, n=8, stream=True)).status_code == 200
        assert server.post(chat(max_tokens=64, n=8)).status_code == 200
        assert eventually(lambda: quota(server).num_held == 0)


def test_answers_of_one_body_over_the_whole_budget_are_refused_for_good():
    body = {"model": "mock", "prompt": [SLOW] * 8, "max_tokens": 64, "logprobs": 5}
    with running(max_logprob_bytes=300_000) as server:
        refused = server.post(body, "/v1/completions")
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "answer_too_large")
        assert server.post(body | {"prompt": [SLOW] * 2}, "/v1/completions").status_code == 200
        assert eventually(lambda: quota(server).num_held == 0)


def test_an_answer_over_the_remaining_budget_gets_retry_after():
    with running(max_logprob_bytes=1_000_000) as server:
        first = server.connect(chat_with_logprobs(SLOW, max_tokens=400))
        assert eventually(lambda: quota(server).num_held == 400 * EACH)
        refused = server.post(chat_with_logprobs(max_tokens=100))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "server_overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert server.post(chat(max_tokens=100)).status_code == 200
        first.close()
        assert eventually(lambda: quota(server).num_held == 0)
        assert server.post(chat_with_logprobs(max_tokens=100)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_response_uses_the_budget_even_if_it_is_streamed(stream):
    body = {"model": "mock", "input": SLOW, "max_output_tokens": 400, "stream": stream}
    body |= {"top_logprobs": 20, "include": ["message.output_text.logprobs"]}
    with running(max_logprob_bytes=1_000_000) as server:
        started = server.connect(body, path="/v1/responses")
        assert eventually(lambda: quota(server).num_held == 400 * EACH)
        started.close()
        assert eventually(lambda: quota(server).num_held == 0)


def test_prompt_logprobs_use_the_budget():
    with running(max_logprob_bytes=100_000) as server:
        refused = server.post(chat("many words " * 20, prompt_logprobs=20, max_tokens=1))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "answer_too_large")
        assert server.post(chat("few", prompt_logprobs=1, max_tokens=1)).status_code == 200
        assert eventually(lambda: quota(server).num_held == 0)


def test_answers_use_at_most_the_reserved_memory():
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        held = [
            Sample(2**20 + n, -1.5 * n, tuple(Logprob(2**21 + n + k, -0.1 * k) for k in range(20)))
            for n in range(1000)
        ]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(held) <= EACH
