"""Resource limits: each tenant has a share, sees its own usage, and everything is released."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from running_server import chat, eventually, mock_pipeline, running, scripted
from two_keys import headers_of, process_with_keys, thread_with_keys

from vlmkit_server.admission.limits import ResourceLimits
from vlmkit_server.settings.server import ServerSettings

SLOW = scripted(text="x", tokens=4000, latency_s=0.01)


def is_empty(server):
    return all(use.total == 0 for use in server.service.admission.limits.uses("").values())


def streamed(server, headers, **fields):
    body = chat(SLOW, stream=True, **fields)
    return server.http.stream("POST", f"{server.url}/v1/chat/completions", json=body,
                              headers=headers)  # fmt: skip


def test_every_resource_is_reported_by_name():
    uses = ResourceLimits(ServerSettings()).uses("anybody")
    assert {"connections", "body_bytes", "requests"} <= set(uses)
    assert all((use.held, use.total) == (0, 0) and use.most > 0 for use in uses.values())


def test_one_tenant_leaves_quota_to_others(tmp_path):
    hog, other = headers_of(tmp_path, "hog", "other")
    (operator,) = headers_of(tmp_path, "operator", scopes=("admin",))
    with process_with_keys(tmp_path, max_requests=16) as server, ThreadPoolExecutor(16) as pool:

        def num_held():
            return server.get("/readyz", headers=operator).json()["resources"]["requests"]["total"]

        asking = [pool.submit(server.post, chat(SLOW, max_tokens=300), headers=hog)
                  for _ in range(16)]  # fmt: skip
        assert eventually(lambda: sum(each.done() for each in asking) == 2)
        refused = [each.result() for each in asking if each.done()]
        assert {each.json()["error"]["code"] for each in refused} == {"server_overloaded"}
        assert server.get("/readyz", headers=hog).json()["status"] == "full"
        assert server.get("/readyz", headers=other).json()["status"] == "ready"
        assert server.post(chat(), headers=other).status_code == 200
        assert {each.result().status_code for each in asking} == {200, 429}
        assert eventually(lambda: num_held() == 0)


def test_tenants_see_their_own_usage_and_only_operators_see_totals(tmp_path):
    hog, other = headers_of(tmp_path, "hog", "other")
    (operator,) = headers_of(tmp_path, "operator", scopes=("chat", "admin"))
    with process_with_keys(tmp_path) as server, streamed(server, hog) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()  # kept in a variable, since dropping it ends the answer
        next(lines)
        shown, alone, all_of_it = (
            server.get("/readyz", headers=headers).json() for headers in (hog, other, operator)
        )
        assert shown["resources"]["requests"] == {"held": 1, "total": None, "most": 1024}
        assert alone["resources"]["requests"] == {"held": 0, "total": None, "most": 1024}
        assert all_of_it["resources"]["requests"] == {"held": 0, "total": 1, "most": 1024}
        assert all_of_it["models"]["mock"]["num_running"] == 1
        for readiness in (shown, alone):
            assert {readiness["models"]["mock"]["num_running"], readiness["num_ignored"]} == {None}
        shown["resources"] = alone["resources"] = all_of_it["resources"] = {}
        assert shown == alone


@pytest.mark.slow
def test_a_client_that_obeys_retry_after_is_admitted():
    with running(max_requests=2) as server, ThreadPoolExecutor(2) as pool:
        body = chat(scripted(text="x", tokens=40, latency_s=0.05), max_tokens=40)
        for _ in range(2):
            asking = [pool.submit(server.post, body) for _ in range(2)]
            assert eventually(lambda: server.service.admission.limits.requests.num_held == 2)
            refused = server.post(chat())
            assert refused.status_code == 429
            for _ in range(5):  # the estimate improves during the wait
                time.sleep(int(refused.headers["retry-after"]))
                if (refused := server.post(chat())).status_code == 200:
                    break
            assert refused.status_code == 200
            assert {each.result().status_code for each in asking} == {200}


def test_disconnected_requests_hold_nothing():
    with running() as server:
        for number in range(30):
            fields = {"stream": number % 2 == 0, "n": 1 + number % 3, "max_tokens": 1000}
            started = server.connect(chat(SLOW, logprobs=number % 4 == 1, **fields))
            if number % 3 == 0:
                started.recv(100 if number % 2 == 0 else 0)
            started.close()
        assert eventually(server.is_idle)
        assert eventually(lambda: is_empty(server))


def test_a_burst_of_one_tenant_does_not_delay_another(tmp_path):
    hog, other = headers_of(tmp_path, "hog", "other")
    models = {"mock": mock_pipeline(max_sequences=8)}
    with thread_with_keys(tmp_path, models=models) as server, ThreadPoolExecutor(6) as pool:
        body = chat(scripted(text="x", tokens=500, latency_s=0.002), n=128)
        asking = [pool.submit(server.post, body, headers=hog) for _ in range(6)]
        assert eventually(lambda: server.runner().stats().num_waiting > 500)
        for _ in range(3):
            started = server.runner().stats().counters["num_finished"]
            assert server.post(chat(max_tokens=8), headers=other).status_code == 200
            # At most its own answer, and one for each sequence slot.
            assert server.runner().stats().counters["num_finished"] - started <= 1 + 8
        assert not any(each.done() for each in asking)
        server.runner().close()
        assert {each.result().status_code for each in asking} == {503}
        assert eventually(lambda: server.service.admission.limits.requests.num_held == 0)


def test_a_drain_that_cancels_answers_releases_everything():
    with running(drain_timeout_s=0.2) as server:
        asking = [
            server.connect(chat(SLOW, stream=number % 2 == 0, logprobs=True, max_tokens=1000))
            for number in range(6)
        ]
        assert eventually(lambda: server.runner().stats().num_running == 6)
    assert all(use.total == 0 for use in server.service.admission.limits.uses("").values())
    for each in asking:
        each.close()


def test_stored_objects_of_one_tenant_are_not_evicted_for_another(tmp_path):
    hog, other = headers_of(tmp_path, "hog", "other")
    few = {"responses__max_stored": 6, "files__max_stored": 6}
    with process_with_keys(tmp_path, **few) as server:

        def stored(headers, text="x", **fields):
            body = {"model": "mock", "input": text} | fields
            return server.post(body, "/v1/responses", headers=headers)

        def uploaded(headers):
            sent = {"file": ("x", b"content")}
            return server.http.post(f"{server.url}/v1/files", files=sent, headers=headers).json()

        slow = scripted(text="x", tokens=4000, latency_s=0.005)
        kept = stored(other).json()["id"]
        going = stored(other, slow, background=True).json()["id"]
        file = uploaded(other)["id"]
        for _ in range(20):
            assert stored(hog).status_code == 200
            uploaded(hog)
        for _ in range(10):
            last = stored(hog, slow, background=True)
        assert (last.status_code, last.json()["error"]["code"]) == (429, "server_overloaded")
        assert "still being answered" in last.json()["error"]["message"]
        paths = (f"/v1/responses/{kept}", f"/v1/responses/{going}", f"/v1/files/{file}")
        answers = [server.get(path, headers=other) for path in paths]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert answers[1].json()["status"] == "in_progress"


def test_the_cost_of_a_prompt_does_not_reveal_prompts_of_other_tenants(tmp_path):
    one, other = headers_of(tmp_path, "one", "other")
    body = chat("the same long beginning " * 40, max_tokens=1)
    with thread_with_keys(tmp_path) as server:

        def cost(headers):
            before = server.runner().stats().counters["num_tokens_computed"]
            usage = server.post(body, headers=headers).json()["usage"]
            computed = server.runner().stats().counters["num_tokens_computed"] - before
            return computed, usage["prompt_tokens_details"]["cached_tokens"]

        first, again, others = cost(one), cost(one), cost(other)
        assert others == first
        assert first[1] == 0 < again[1]
        assert again[0] < first[0]
