"""Memory that the server holds for a request during its answer."""

import gc
import tracemalloc

import pytest
from running_server import chat, eventually, image_part, image_url, running, scripted

ENDLESS = scripted(text="x", tokens=4000, latency_s=0.01)
NUM_BYTES = 2000 * 1500 * 3


def image_chat(width, height, text, **fields):
    parts = [image_part(image_url(width, height, kind="BMP")), {"type": "text", "text": text}]
    return chat(**fields) | {"messages": [{"role": "user", "content": parts}]}


def image_response(width, height, text, **fields):
    """Return the same body for the Responses API, with storage disabled."""
    url = image_url(width, height, kind="BMP")
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": text}]
    messages = [{"role": "user", "content": parts}]
    return {"model": "mock", "input": messages, "store": False} | fields


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("ask", "path", "limit"),
    [
        (image_chat, "/v1/chat/completions", "max_tokens"),
        (image_response, "/v1/responses", "max_output_tokens"),
    ],
)
def test_a_running_answer_holds_neither_body_nor_file_nor_pixels(stream, ask, path, limit):
    with running() as server:
        assert server.post(ask(8, 6, "so that all is imported"), path).status_code == 200
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            sent = ask(2000, 1500, ENDLESS, stream=stream, **{limit: 4000})
            with server.connect(sent, path=path):
                del sent
                assert eventually(lambda: server.runner().stats().num_running == 1)

                def held():
                    gc.collect()
                    return tracemalloc.get_traced_memory()[0] - before

                assert eventually(lambda: held() < NUM_BYTES / 10)  # released soon
        finally:
            tracemalloc.stop()
        assert eventually(server.is_idle)
