"""Images of one request are decoded concurrently; order, errors and limits stay the same."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from running_server import chat, image_part, image_url, mock_pipeline, running

import vlmkit.types.image
from vlmkit.settings.pipeline import PipelineSettings


def body(*urls):
    parts = [image_part(url) for url in urls]
    return {"model": "mock", "messages": [{"role": "user", "content": [part]} for part in parts]}


class DecodeBarrier:
    """Blocks the decoding of images until the expected number is being decoded at once."""

    def __init__(self, monkeypatch, num_expected):
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(num_expected)
        self._num_open = self.num_most = 0
        self.threads = set()
        self._decoded = vlmkit.types.image.decoded
        monkeypatch.setattr(vlmkit.types.image, "decoded", self.decoded)

    def decoded(self, content, peak_bytes):
        self.threads.add(threading.current_thread().name.rpartition("-")[0])
        with self._lock:
            self._num_open += 1
            self.num_most = max(self.num_most, self._num_open)
        try:
            self._barrier.wait(timeout=300)
            return self._decoded(content, peak_bytes)
        finally:
            with self._lock:
                self._num_open -= 1


@pytest.mark.parametrize(("num_workers", "num_at_once"), [(4, 3), (3, 2), (2, 1), (1, 1)])
def test_images_are_decoded_concurrently_in_all_workers_but_one(
    monkeypatch, num_workers, num_at_once
):
    pipeline = mock_pipeline(settings=PipelineSettings(num_workers=num_workers))
    with running({"mock": pipeline}) as server:
        barrier = DecodeBarrier(monkeypatch, num_at_once)
        answer = server.post(body(*(image_url(8 + n, 6) for n in range(6))))
        assert answer.status_code == 200, answer.text
        text = answer.json()["choices"][0]["message"]["content"]
        assert [line.split()[2] for line in text.splitlines()] == [f"{8 + n}x6" for n in range(6)]
        assert barrier.num_most == num_at_once
        assert barrier.threads == {"vlmkit-prompt"}


def test_the_error_names_the_first_of_several_broken_images(server):
    large = image_url(3000, 2000, kind="JPEG")
    for broken in ("data:,", image_url(kind="PNG")[:-40]):
        for _ in range(5):
            error = server.post(body(large, broken, large, broken)).json()["error"]
            assert error["param"] == "messages[1].content[0].image_url.url"
            assert error["code"] == "invalid_image"


def test_requests_with_images_leave_a_worker_to_text_requests():
    """Concurrent requests do not deadlock over each other's workers."""
    with running() as server, ThreadPoolExecutor(8) as clients:
        shown = body(*[image_url(1500, 1000, kind="JPEG")] * 4)
        answers = [clients.submit(server.post, each) for each in [shown, chat("hello")] * 8]
        assert [answer.result().status_code for answer in answers] == [200] * 16


def test_images_over_the_pixel_limit_together_are_refused_in_any_order():
    with running(max_request_pixels=100) as server:
        for sizes in ([(8, 6), (10, 6)], [(10, 6), (8, 6)], [(2, 2)] * 10 + [(9, 9)]):
            answer = server.post(body(*(image_url(*size) for size in sizes)))
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "image_too_large"
        assert server.post(body(*[image_url(5, 5)] * 4)).status_code == 200
