"""What the server keeps of a request while it is answered."""

import gc
import tracemalloc

import pytest
from running_server import chat, eventually, image_part, picture, running, scripted

ENDLESS = scripted(text="x", tokens=4000, latency_s=0.01)
NUM_BYTES = 2000 * 1500 * 3


def shown(width, height, text, **fields):
    parts = [image_part(picture(width, height, kind="BMP")), {"type": "text", "text": text}]
    return chat(**fields) | {"messages": [{"role": "user", "content": parts}]}


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_under_way_holds_neither_body_nor_file_nor_pixels(stream):
    with running() as server:
        assert server.post(shown(8, 6, "so that all is imported")).status_code == 200
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            connection = server.connect(shown(2000, 1500, ENDLESS, stream=stream, max_tokens=4000))
            with connection:
                assert eventually(lambda: server.runner().stats().num_running == 1)
                gc.collect()
                held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert held < NUM_BYTES / 10
        assert eventually(server.is_idle)
