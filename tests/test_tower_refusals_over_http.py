"""An image that a vision tower cannot process is refused over HTTP, by its path, and alone.

The server runs the packaged model. A plugin crops the arrays of images of one size, so ONNX Runtime
itself fails at them.
"""

import base64
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("pypdfium2")
sys.path.append(str(Path(__file__).parents[1] / "packages/vlmkit-server/tests"))

from running_server import eventually, image_part, image_url, process

pytestmark = pytest.mark.posix

ODD = (37, 61)
PLUGIN = f'''
"""An encoder that hands the graph arrays that it does not take, of pictures of one size."""
import dataclasses

import numpy as np

import vlmkit

VLMKIT_API = (1, 0)


class Cutting:
    def __init__(self, encoder):
        self._encoder = encoder

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode(self, slots):
        return self._encoder.encode([cut(slot) for slot in slots])


def cut(slot):
    if slot.transform is None or {{*slot.transform.source_size}} != {{{ODD[0]}, {ODD[1]}}}:
        return slot
    inputs = {{name: array[..., :-1] for name, array in slot.inputs.items()}}
    return dataclasses.replace(slot, inputs=inputs)


def build(context):
    from vlmkit_onnx.build import build_encoder

    return Cutting(build_encoder(context))


@vlmkit.hookimpl
def vlmkit_register_media_encoders(registry):
    registry.add("cutting", build, description="cuts arrays")
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("towers")
    plugin = folder / "cutting.py"
    plugin.write_text(PLUGIN)
    command = [sys.executable, "-m", "vlmkit", "serve", "demo", "--port", "0"]
    command += ["--set", f'plugins.files=["{plugin}"]', "--set", "media_encoder.use=cutting"]
    with process(command, folder) as server:
        assert eventually(lambda: server.status() == 200), server.log.read_text()
        yield server


def showing(*images):
    content = [{"type": "text", "text": "What is in this picture?"}, *map(image_part, images)]
    return {"model": "demo", "messages": [{"role": "user", "content": content}], "max_tokens": 4}


def chat_body(good, odd):
    return showing(good, odd)


def messages_body(good, odd):
    sources = [
        {"type": "base64", "media_type": "image/png", "data": u.partition(",")[2]}
        for u in (good, odd)
    ]
    content = [{"type": "image", "source": source} for source in sources]
    messages = [{"role": "user", "content": [{"type": "text", "text": "And this?"}, *content]}]
    return {"model": "demo", "messages": messages, "max_tokens": 4}


def responses_body(good, odd):
    content = [{"type": "input_image", "image_url": url} for url in (good, odd)]
    asked = [{"role": "user", "content": [{"type": "input_text", "text": "And this?"}, *content]}]
    return {"model": "demo", "input": asked, "max_output_tokens": 4, "store": False}


APIS = {
    "/v1/chat/completions": (chat_body, "messages[0].content[2].image_url.url"),
    "/v1/messages": (messages_body, "messages[0].content[2].source"),
    "/v1/responses": (responses_body, "input[0].content[2].image_url"),
}


def failure(answer):
    """Return the status and the error of an answer, which a stream may tell in its last event."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
        event = json.loads(lines[-1].removeprefix("data: "))
        return 400, event.get("error") or event["response"]["error"]
    return answer.status_code, answer.json()["error"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", APIS)
def test_the_refusal_names_the_image(server, path, stream):
    body, field = APIS[path]
    answer = server.post(body(image_url(), image_url(*ODD)) | {"stream": stream}, path)
    status, error = failure(answer)
    assert status == 400, error
    assert "vision graph cannot take this image" in error["message"]
    if path != "/v1/responses" or not stream:  # the event of a failed response names no field
        assert field in str(error)


def test_an_image_after_a_document_is_named(server):
    pdf = b"".join(
        [
            b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n",
            b"2 0 obj<</Type/Pages/Kids[3 0 R 3 0 R 3 0 R]/Count 3>>endobj\n",
            b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>endobj\n",
            b"trailer<</Root 1 0 R>>\n",
        ]
    )
    body = showing(image_url(*ODD))
    data = "data:application/pdf;base64," + base64.b64encode(pdf).decode()
    body["messages"][0]["content"].insert(0, {"type": "file", "file": {"file_data": data}})
    for _ in range(3):
        status, error = failure(server.post(body))
        assert (status, error["param"]) == (400, "messages[0].content[2].image_url.url"), error


def test_other_images_beside_the_refused_one_are_answered(server):
    bodies = [
        showing(image_url(*ODD)) if n % 4 == 0 else showing(image_url(40 + n)) for n in range(12)
    ]
    with ThreadPoolExecutor(12) as clients:
        statuses = [answer.status_code for answer in clients.map(server.post, bodies)]
    assert statuses == [400 if n % 4 == 0 else 200 for n in range(12)]


def test_the_log_states_where_it_failed_and_quotes_no_library(server):
    assert server.post(showing(image_url(*ODD))).status_code == 400
    log = server.log.read_text()
    assert "the vision graph failed at one image" in log
    assert "InvalidArgument" in log
    assert "Got invalid dimensions" not in log
