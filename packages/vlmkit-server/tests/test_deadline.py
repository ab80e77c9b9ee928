"""A request ends at its deadline, whatever its state, and releases everything."""

import json

import pytest
from running_server import chat, eventually, mock_pipeline, running, scripted

SLOW = scripted(text="x", tokens=4000, latency_s=0.01)


def code(answer):
    return answer.status_code, answer.json()["error"]["code"]


def is_empty(server):
    return server.is_idle() and server.service.admission.limits.requests.num_held == 0


def test_a_request_over_the_server_timeout_ends_with_an_error():
    with running(request_timeout_s=0.3) as server:
        answer = server.post(chat(SLOW))
        assert code(answer) == (503, "deadline_exceeded")
        assert "time" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) >= 1
        assert server.post(chat("hello", max_tokens=1)).status_code == 200
        assert eventually(lambda: is_empty(server))


def test_a_client_can_shorten_the_timeout_and_never_extend_it():
    with running(request_timeout_s=0.4) as server:
        for patience in ("0.2", "100"):
            answer = server.post(chat(SLOW), headers={"x-request-timeout": patience})
            assert code(answer) == (503, "deadline_exceeded")
        assert eventually(lambda: is_empty(server))


def test_a_stream_over_its_timeout_ends_with_an_error():
    with running() as server:
        answer = server.post(chat(SLOW, stream=True), headers={"x-request-timeout": "0.5"})
        lines = [line for line in answer.text.split("\n\n") if line]
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
        assert eventually(lambda: is_empty(server))


def test_the_deadline_includes_time_in_the_queue():
    with running({"mock": mock_pipeline(max_sequences=1)}) as server:
        first = server.connect(chat(SLOW, stream=True))
        assert eventually(lambda: server.runner().stats().num_running == 1)
        assert code(server.post(chat(), headers={"x-request-timeout": "0.3"}))[0] == 503
        assert server.runner().stats().num_running == 1
        first.close()
        assert eventually(lambda: is_empty(server))


def test_a_background_answer_over_its_timeout_fails():
    with running() as server:
        body = {"model": "mock", "input": SLOW, "background": True}
        headers = {"x-request-timeout": "0.5"}
        answer = server.post(body, "/v1/responses", headers=headers).json()
        path = f"/v1/responses/{answer['id']}"
        assert eventually(lambda: server.get(path).json()["status"] == "failed")
        assert eventually(lambda: is_empty(server))


@pytest.mark.parametrize("given", ["", "0", "-1", "nan", "1e9", "5s", "inf", "1" * 400])
def test_an_invalid_timeout_is_refused(server, given):
    answer = server.post(chat(), headers={"x-request-timeout": given})
    assert code(answer) == (400, "invalid_request")
    assert answer.json()["error"]["param"] == "x-request-timeout"
