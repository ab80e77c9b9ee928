"""The MCP server in this process: cancelled calls, a loading model, and URLs."""

import asyncio
import io
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import PIL.Image
import pytest
from mcp_client import connected, texts

import vlmkit
from vlmkit import Model
from vlmkit.errors import ImageError
from vlmkit.kit.image_fetcher import ImageFetcher
from vlmkit.settings.fetch import FetchSettings
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit_mcp.background_model import BackgroundModel
from vlmkit_mcp.image_opener import ImageOpener
from vlmkit_mcp.server import ImageTool, make_server

SLOW = '{"mock": {"text": "a", "tokens": 20000, "latency_s": 0.02}}'


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with vlmkit.load("mock") as model:
        yield model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    PIL.Image.new("RGB", (8, 6), "teal").save(tmp_path / "teal.png")
    return tmp_path


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Serve the same image under every path of a local web server."""
    content = io.BytesIO()
    PIL.Image.new("RGB", (8, 6), "teal").save(content, "PNG")

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content.getvalue())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/a.png"
        server.shutdown()
        thread.join()


def eventually(is_true: Callable[[], bool]) -> bool:
    """Wait until a condition is true."""
    deadline = time.monotonic() + 300
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true()


def is_idle(model: Model) -> bool:
    stats = model.stats()
    return not stats.num_running and not stats.num_waiting


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_call_that_is_cancelled_ends_its_answer(model: Model, folder: Path, mode: str) -> None:
    late = BackgroundModel(lambda: model, lambda error: None)
    late.start()
    with connected(make_server(ImageTool(late, ImageOpener([folder], None))), mode) as client:
        call = client.portal.start_task_soon(client.ask_async, SLOW, "teal.png")
        assert eventually(lambda: not is_idle(model))
        call.cancel()
        assert eventually(lambda: is_idle(model))
        assert texts(client.ask('{"mock": {"text": "hello"}}', "teal.png")) == ["hello"]


def test_cancelling_a_call_during_loading_does_not_affect_others(
    model: Model, folder: Path
) -> None:
    is_there = threading.Event()

    def load() -> Model:
        is_there.wait()
        return model

    late = BackgroundModel(load, lambda error: None)
    late.start()
    with connected(make_server(ImageTool(late, ImageOpener([folder], None))), "legacy") as client:
        question = '{"mock": {"text": "hello"}}'
        first = client.portal.start_task_soon(client.ask_async, question, "teal.png")
        second = client.portal.start_task_soon(client.ask_async, question, "teal.png")
        (tool,) = client.portal.call(client.client.list_tools).tools  # is listed during loading
        assert tool.name == "ask_about_image"
        first.cancel()
        is_there.set()
        assert texts(second.result()) == ["hello"]


def test_a_model_that_loads_after_the_end_is_closed() -> None:
    is_there = threading.Event()
    model = vlmkit.load("mock")

    def load() -> Model:
        is_there.wait()
        return model

    late = BackgroundModel(load, lambda error: None)
    late.start()
    late.close()
    is_there.set()
    assert asyncio.run(late.get()) is model
    assert not model.runner.is_ready


def test_a_panic_while_loading_is_reported_and_the_server_continues(folder: Path) -> None:
    class Panic(BaseException):
        pass

    def load() -> Model:
        raise Panic("secret words of a library")

    failures: list[Exception] = []
    late = BackgroundModel(load, failures.append)
    late.start()
    with connected(make_server(ImageTool(late, ImageOpener([folder], None)))) as client:
        result = client.ask("What is this?", "teal.png")
        assert result.is_error
        assert "secret" not in texts(result)[0]
    assert len(failures) == 1
    late.close()


def test_urls_are_fetched_by_the_rules_of_the_server(site: str) -> None:
    settings = FetchSettings(enabled=True, allow_http=True)
    bounds = PipelineSettings()
    anywhere = ImageOpener([], ImageFetcher(settings, may_connect=lambda _: True))
    (image,) = asyncio.run(anywhere.open_all([site], bounds))
    assert image.source_size == (8, 6)
    public = ImageOpener([], ImageFetcher(settings))
    with pytest.raises(ImageError, match=r"images\[0\]: the image's address is not a public one"):
        asyncio.run(public.open_all([site], bounds))
    other = FetchSettings(enabled=True, allow_http=True, allowed_hosts=("example.org",))
    elsewhere = ImageOpener([], ImageFetcher(other, may_connect=lambda _: True))
    with pytest.raises(ImageError, match=r"images\[0\]: .* no images from the host"):
        asyncio.run(elsewhere.open_all([site], bounds))


def test_the_images_of_a_question_share_a_pixel_limit(folder: Path) -> None:
    bounds = PipelineSettings()
    opener = ImageOpener([folder], None, max_pixels=2 * 8 * 6)
    images = asyncio.run(opener.open_all(["teal.png"] * 2, bounds))
    assert [type(image) for image in images] == [Image, Image]
    with pytest.raises(ImageError, match="too many pixels together"):
        asyncio.run(opener.open_all(["teal.png"] * 3, bounds))


def test_without_folders_no_file_is_read(folder: Path) -> None:
    with pytest.raises(ImageError, match=r"images\[0\]: it is not a file that may be read"):
        asyncio.run(ImageOpener([], None).open_all([str(folder / "teal.png")], PipelineSettings()))
