"""Pages of documents and images that media loaders decode count for the pixels of a request."""

import base64
import io
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image as PilImage

import vlmkit

pytest.importorskip("pypdfium2")
pytest.importorskip("pillow_heif")
sys.path.append(str(Path(__file__).parents[1] / "packages/vlmkit-server/tests"))

import pillow_heif
from running_server import eventually, image_url, process, recorded_requests, running

pytestmark = pytest.mark.posix
PIXELS = 400 * 200  # of one image


def encoded(data, kind):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def document(num_pages):
    """Return a PDF file whose pages are drawn with as many pixels as the other images have."""
    pages = [PilImage.new("RGB", (200, 100), colour) for colour in ("red", "blue", "green")]
    content = io.BytesIO()
    pages[0].save(content, "PDF", save_all=True, append_images=pages[1:num_pages])
    return {
        "type": "file",
        "file": {"file_data": encoded(content.getvalue(), "application/pdf"), "filename": "a.pdf"},
    }


def shown(url):
    return {"type": "image_url", "image_url": {"url": url}}


def photo():
    """Return a HEIC file."""
    content = io.BytesIO()
    pillow_heif.from_pillow(PilImage.new("RGB", (400, 200), "red")).save(content)
    return shown(encoded(content.getvalue(), "image/heic"))


@contextmanager
def limited(num_images):
    """Run a server whose requests may have the pixels of so many images; one prompt at a time."""
    with vlmkit.load("mock", engine={"max_sequences": 1}) as model:
        models = {"mock": model.runner}
        with running(models, max_request_pixels=int(num_images * PIXELS)) as server:
            yield server


def ask(server, *parts):
    content = [*parts, {"type": "text", "text": "?"}]
    return server.post({"model": "mock", "messages": [{"role": "user", "content": content}]})


def code_of(answer):
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["code"]


@pytest.mark.parametrize(
    ("parts", "num"),
    [
        (lambda: [document(2)], 2),
        (lambda: [photo()], 1),
        (lambda: [shown(image_url(400, 200)), document(2), photo()], 4),
    ],
    ids=["pages", "heic", "all"],
)
def test_images_of_files_count_for_the_pixels_of_a_request(parts, num):
    with limited(num) as server:
        assert ask(server, *parts()).status_code == 200
    with limited(num - 0.01) as server:
        assert code_of(ask(server, *parts())) == "image_too_large"


@pytest.mark.parametrize("elsewhere", ["server.num_renderers=1", "runner.use=subprocess"])
def test_pages_that_another_process_opens_count_too(tmp_path, elsewhere):
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    command += ["--set", elsewhere, "--set", f"server.max_request_pixels={2 * PIXELS}"]
    with process(command, tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        assert ask(server, document(2)).status_code == 200
        assert code_of(ask(server, document(3))) == "image_too_large"


@pytest.mark.parametrize("part", [lambda: document(1), photo], ids=["page", "heic"])
@pytest.mark.parametrize("is_query", [True, False], ids=["query", "documents"])
def test_no_prompt_is_made_once_the_prompts_of_a_body_have_too_many_pixels(
    monkeypatch, part, is_query
):
    item = {"content": [part()]}
    body = {"model": "mock", "score_method": "yes_no", "query": "x", "documents": [item] * 40}
    if is_query:
        body |= {"query": item, "documents": ["x"] * 40}
    with limited(3) as server, recorded_requests(server, monkeypatch) as requests:
        assert (
            server.post(body | {"documents": body["documents"][:3]}, "/v1/rerank").status_code
            == 200
        )
        requests.clear()
        answer = server.post(body, "/v1/rerank")
        assert code_of(answer) == "image_too_large"
        assert answer.json()["error"]["param"] == "documents[3]"
        assert len(requests) == 4, "the request that exceeds the limit is the last one"
