"""Light ``/render``: the tokens of a full prompt, computed from image sizes only."""

import asyncio
import base64
import io
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import PIL.Image
import pytest
from running_server import chat, image_part, image_url, mock_pipeline, running

from vlmkit.errors import RequestError
from vlmkit.image_files import pixels
from vlmkit.kit.image_fetcher import ImageFetcher
from vlmkit.settings.fetch import FetchSettings
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.message import ImagePart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_server.apis.openai_chat.conversation import conversation_of
from vlmkit_server.apis.openai_chat.wire import CHAT as CHAT_BODY
from vlmkit_server.conversation.request_builder import RequestBuilder
from vlmkit_server.http.caller import ANONYMOUS
from vlmkit_server.interfaces.conversation import ImageSource
from vlmkit_server.settings.server import ServerSettings

CHAT = "/v1/chat/completions/render"


def light_body(*urls, **fields):
    return chat(light=True, **fields) | {
        "messages": [{"role": "user", "content": [*map(image_part, urls)]}]
    }


def rendered(server, body, path=CHAT):
    answer = server.post(body, path, headers={"x-vlmkit-strict": "1"})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(server, body):
    answer = server.post(body, CHAT)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def rotated(width, height):
    """Return the data: URL of an image that its orientation tag turns by 90 degrees."""
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    content = io.BytesIO()
    PIL.Image.new("RGB", (width, height)).save(content, "JPEG", exif=exif)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()


@pytest.fixture
def without_pixels(monkeypatch):
    def fail(*_):
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(pixels, "_upright", fail)


def test_a_light_prompt_has_the_tokens_of_the_full_one_and_no_digests(server):
    body = light_body(image_url(), rotated(30, 12), image_url(9, 80), max_image_tokens=2)
    light, whole = rendered(server, body), rendered(server, body | {"light": False})
    assert light["features"].pop("mm_hashes") is None
    assert whole["features"].pop("mm_hashes") is not None
    for made in (light, whole):
        del made["request_id"]
    assert light == whole
    assert [image["width"] for image in light["images"]] == [8, 12, 9]


def test_a_light_prompt_decodes_no_pixels(server, without_pixels):
    urls = [image_url(), rotated(30, 12), "size:640x480"]
    found = rendered(server, light_body(*urls))
    each = [(image["width"], image["height"]) for image in found["images"]]
    assert each == [(8, 6), (12, 30), (640, 480)]
    assert server.post(light_body(image_url()) | {"light": False}, CHAT).status_code != 200


def test_a_size_url_replaces_an_image(server):
    found = rendered(server, light_body("size:8x6"))
    assert found["token_ids"] == rendered(server, light_body(image_url(8, 6)))["token_ids"]
    source = {"type": "url", "url": "size:8x6"}
    turn = {"role": "user", "content": [{"type": "image", "source": source}]}
    body = {"model": "mock", "max_tokens": 1, "light": True, "messages": [turn]}
    assert rendered(server, body, "/v1/messages/render")["images"][0]["width"] == 8


def test_a_light_response_has_the_tokens_of_a_light_chat(server):
    parts = [{"type": "input_image", "image_url": "size:8x6"}]
    body = {"model": "mock", "light": True, "input": [{"role": "user", "content": parts}]}
    prompt = rendered(server, body, "/v1/responses/render")
    assert prompt["token_ids"] == rendered(server, light_body(image_url(8, 6)))["token_ids"]
    assert prompt["images"][0]["width"] == 8


def test_light_has_no_effect_on_text_prompts(server):
    body = {"model": "mock", "prompt": "ab"}
    path = "/v1/completions/render"
    (light,), (whole,) = (
        rendered(server, body | {"light": True}, path),
        rendered(server, body, path),
    )
    assert light["token_ids"] == whole["token_ids"]
    assert rendered(server, chat(light=True))["token_ids"] == rendered(server, chat())["token_ids"]


@pytest.mark.parametrize(
    "url",
    ["size:", "size:8", "size:8x", "size:x6", "size:-8x6", "size:8x6x4", "size:8.0x6", "size:٣x6",
     "size:9999999999x1", "data:image/png;base64,AAAA", "data:", "/etc/passwd", "file:///x", ""],
)  # fmt: skip
def test_an_image_without_a_readable_size_is_refused_with_its_location(server, url):
    error = refusal(server, light_body("size:8x6", url))
    assert error["param"] == "messages[0].content[1].image_url.url"


def test_size_urls_have_the_limits_of_images():
    limits = PipelineSettings(max_images=2, images=ImageLimits(max_pixels=100))
    with running({"mock": mock_pipeline(settings=limits)}, max_request_pixels=150) as server:
        assert refusal(server, light_body("size:11x10"))["code"] == "image_too_large"
        assert refusal(server, light_body("size:1x10"))["code"] == "image_too_small"
        assert refusal(server, light_body(*["size:10x10"] * 2))["param"] == "messages"
        assert refusal(server, light_body(*["size:2x2"] * 3))["code"] == "too_many_images"


def test_size_urls_are_refused_outside_light_prompts(server):
    for path in (CHAT, "/v1/chat/completions", "/tokenize"):
        body = light_body("size:8x6")
        del body["light"]
        error = server.post(body, path).json()["error"]
        assert error["code"] == "image_url_not_allowed"


def test_a_light_prompt_cannot_be_generated_from(server):
    body = CHAT_BODY.read(json.dumps(chat()).encode())[0]
    facts = server.runner().facts
    building = RequestBuilder(ServerSettings(), None).request(
        conversation_of(body), facts, "x", light=True
    )
    request, _ = asyncio.run(building)
    assert request.options == PromptOptions(light=True)
    with pytest.raises(RequestError) as caught:
        server.runner().submit(request)
    assert caught.value.param == "light"


def test_light_is_refused_by_a_tokenizer_without_support(monkeypatch):
    honours = MockTokenizer().honours - {"light"}
    monkeypatch.setattr(MockTokenizer, "honours", property(lambda _: honours))
    with running() as server:
        error = refusal(server, light_body(image_url()))
        assert (error["param"], error["code"]) == ("light", "unsupported_parameter")
        (model,) = server.get("/v1/capabilities").json()["models"]
        assert "light" in model["endpoints"][CHAT]["refused"]
        assert rendered(server, light_body(image_url()) | {"light": False})["images"]


class Slowly(BaseHTTPRequestHandler):
    """Sends part of an image, and then waits until the client disconnects."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        content = self.server.content
        self.wfile.write(content[: self.server.num_bytes])
        self.wfile.flush()
        self.server.is_over.wait(300)

    def log_message(self, *_):
        pass


@contextmanager
def site(content, num_bytes) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Slowly) as server:
        server.content, server.num_bytes = content, num_bytes
        server.is_over = threading.Event()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/picture"
        finally:
            server.is_over.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_only_the_header_of_a_remote_image_is_fetched(kind, server):
    noise = random.Random(0).randbytes(300 * 200 * 3)
    content = io.BytesIO()
    PIL.Image.frombytes("RGB", (300, 200), noise).save(content, kind)
    settings = FetchSettings(enabled=True, allow_http=True, timeout_s=300)
    fetcher = ImageFetcher(settings, may_connect=lambda _: True)
    media = RequestBuilder(ServerSettings(), fetcher).media
    with site(content.getvalue(), 2**13) as url:  # the rest is never sent
        images, facts = [ImageSource("x", url)], server.runner().facts
        opening = media.open_images(images, facts, ANONYMOUS, light=True)
        (part,) = asyncio.run(opening)
    assert isinstance(part, ImagePart)
    assert (part.image.width, part.image.height) == (300, 200)
