"""Fifty files give the same answer or refusal by the command line, in Python and over HTTP."""

import base64
import io
import re
import subprocess
import sys
import time

import openai
import pytest

import vlmkit
from image_files import FILES
from vlmkit.cli import run
from vlmkit.image_files.decode_cost import FORMATS

pytest.importorskip("pypdfium2")
pillow_heif = pytest.importorskip("pillow_heif")
pytestmark = pytest.mark.posix

QUESTION = "what?"
REFUSED = {
    "drawing.svg": "an SVG drawing",
    "drawing with xml.svg": "an SVG drawing",
    "login page.jpg": "an HTML page",
    "empty.png": "the file is empty",
    "notes.png": "a text",
    "zeros.jpg": "no media loader recognises the file",
    "film.mp4": "an MPEG-4 video",
    "film.webm": "a Matroska or WebM video",
    "report.docx": "a ZIP archive or an Office document",
    "photo.jp2": "a JPEG 2000 image",
    "icon.ico": "an icon",
    "pointer.png": "a pointer to a file in Git LFS",
    "cut.jpg": "image is broken: its pixels cannot be decoded",
    "cut.png": "image is broken: its pixels cannot be decoded",
    "cut.tif": "image is broken: its pixels cannot be decoded",
    "cut.avif": "image is broken: its pixels cannot be decoded",
    "header alone.png": "a PNG image whose header cannot be read",
    "huge.png": "over 50000000 pixels",
    "old.tif": "old-style JPEG compression",
    "line.png": "more than 100 times as long",
}
SIZES = {"turned.jpg": "36x48", "turned.tif": "36x48", "pages.pdf": None}
NUM_PAGES = {"pages.tif": 3, "pages.pdf": 3}


def heic(**options):
    file = pillow_heif.from_bytes("RGB", (48, 36), bytes(48 * 36 * 3))
    written = io.BytesIO()
    file.save(written, quality=50, **options)
    return written.getvalue()


def content_of(name):
    return heic() if name.endswith(".heic") else FILES[name]()


@pytest.fixture(scope="module")
def model():
    with vlmkit.load("mock") as model:
        yield model


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    with log.open("wb") as log_file, subprocess.Popen(command, stderr=log_file) as process:
        try:
            deadline = time.monotonic() + 300
            while "'mock' is ready\n" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            url = re.search(r"listening on (\S+)", log.read_text())[1]
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                yield client
        finally:
            process.kill()


def by_python(model, path):
    try:
        return model.generate(QUESTION, images=path).text
    except vlmkit.VlmkitError as error:
        return f"{error} ({error.hint})".removeprefix(f"{str(path)!r}: ")


def by_command(capsys, path):
    code = run(["ask", "mock", QUESTION, "--image", str(path)])
    shown = capsys.readouterr()
    if code == 0:
        return shown.out.removesuffix("\n")
    message, _, hint = shown.err.partition("\nhint: ")
    message = message.removeprefix("error: ")
    assert message.startswith(repr(str(path)))
    return f"{message.removeprefix(f'{str(path)!r}: ')} ({hint.strip()})"


def by_http(client, path):
    url = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": QUESTION},
    ]
    messages = [{"role": "user", "content": content}]
    try:
        answer = client.chat.completions.create(model="mock", messages=messages)
    except openai.BadRequestError as error:
        return refusal(error)
    return answer.choices[0].message.content


def refusal(error):
    assert error.code in ("invalid_image", "image_too_large", "image_too_complex")
    assert error.param == "messages[0].content[0].image_url.url"
    return error.body["message"]


@pytest.mark.parametrize("name", [*FILES, "photo.heic"])
def test_python_command_line_and_http_give_the_same_result_for_a_file(
    name, model, client, tmp_path, capsys
):
    path = tmp_path / name
    path.write_bytes(content_of(name))
    found = by_python(model, path)
    assert by_command(capsys, path) == found
    assert by_http(client, path) == found
    if name in REFUSED:
        assert REFUSED[name] in found
        return
    size = SIZES.get(name, "48x36")
    assert found.count(size or "x") >= NUM_PAGES.get(name, 1), found


def test_the_files_cover_every_decoded_format():
    suffixes = {name.rpartition(".")[2] for name in FILES}
    found = {{"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper()) for suffix in suffixes}
    assert set(FORMATS) <= found
    assert len(FILES) >= 40
