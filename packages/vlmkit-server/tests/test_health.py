"""Liveness, readiness and admission while a server loads, works, is full or has failed."""

import threading
from concurrent.futures import ThreadPoolExecutor

from running_server import chat, eventually, image_part, image_url, mock_pipeline, running, scripted

from vlmkit.errors import CheckpointError
from vlmkit_server.run import serve
from vlmkit_server.settings.server import ServerSettings


def test_a_server_with_its_models_loaded_is_ready(server):
    assert server.get("/healthz").json() == {"status": "ok"}
    answer = server.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ready"
    assert answer.json()["models"]["mock"]["state"] == "ready"


def test_a_server_answers_while_its_models_load():
    pipeline = mock_pipeline()
    with running({"mock": pipeline, "late": None}) as server:
        late = server.service.models["late"]
        answer = server.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "loading")
        assert answer.headers["retry-after"]
        assert answer.json()["models"]["late"]["state"] == "waiting"
        late.mark_loading()
        assert server.get("/readyz").json()["models"]["late"]["state"] == "loading"
        assert server.get("/healthz").status_code == 200
        assert server.get("/v1/models/late").json()["state"] == "loading"
        assert server.post(chat()).status_code == 200
        refused = server.post(chat() | {"model": "late"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_loading")
        assert refused.headers["retry-after"]
        with mock_pipeline() as second:
            late.mark_ready(second)
            assert server.get("/readyz").status_code == 200
            assert server.post(chat() | {"model": "late"}).status_code == 200


def test_a_full_queue_is_reported_by_readyz_and_refuses_requests():
    pipeline = mock_pipeline(max_sequences=1, max_waiting=1)
    with running({"mock": pipeline}) as server:
        text = scripted(text="x", tokens=4000, latency_s=0.01)
        first = server.connect(chat(text, stream=True, max_tokens=4000))
        assert eventually(lambda: pipeline.stats().num_running == 1)
        second = server.connect(chat(text, stream=True, max_tokens=4000))
        assert eventually(lambda: pipeline.stats().num_waiting == 1)
        assert eventually(lambda: server.get("/readyz").json()["status"] == "full")
        for stream in (False, True):
            refused = server.post(chat(stream=stream))
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert refused.headers["retry-after"]
        first.close()
        second.close()
        assert eventually(lambda: server.get("/readyz").status_code == 200)


def test_requests_over_the_request_limit_are_refused():
    with running(max_requests=1) as server:
        first = server.connect(chat(scripted(text="x", tokens=4000, latency_s=0.01), stream=True))
        assert eventually(lambda: server.runner().stats().num_running == 1)
        refused = server.post(chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "server_overloaded")
        assert server.get("/readyz").json()["status"] == "full"
        first.close()
        assert eventually(server.is_idle)
        assert server.post(chat()).status_code == 200


def test_the_total_size_of_pending_bodies_is_limited():
    with running(max_pending_body_bytes=500) as server:
        assert server.post(chat()).status_code == 200
        refused = server.post(chat("x" * 500))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "server_overloaded")


def test_an_engine_crash_fails_its_requests_without_the_engines_error_text():
    with running() as server:
        broken = server.post(chat(scripted(text="abc", crash_at_token=1)))
        assert (broken.status_code, broken.json()["error"]["code"]) == (503, "model_failed")
        assert "crash" not in broken.text


def test_a_closed_pipeline_is_not_ready():
    pipeline = mock_pipeline()
    with running({"mock": pipeline}) as server:
        pipeline.close()
        answer = server.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")
        refused = server.post(chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_failed")


def test_liveness_is_answered_while_a_large_image_is_decoded(server):
    parts = [image_part(image_url(8000, 6000, kind="JPEG"))]
    body = {"model": "mock", "messages": [{"role": "user", "content": parts}]}
    num_answers = 0
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, body)
        while not answer.done():
            assert server.get("/healthz").status_code == 200
            num_answers += 1
    assert (
        answer.result().json()["choices"][0]["message"]["content"].startswith("image 1: 8000x6000")
    )
    assert num_answers > 5


def test_a_load_error_of_the_only_model_ends_the_server():
    def load():
        raise CheckpointError("no such model")

    raised = []

    def run():
        try:
            serve({"broken": load}, ServerSettings(port=0))
        except CheckpointError as error:
            raised.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert raised == ["no such model"]
