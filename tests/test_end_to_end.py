"""The product as its users meet it: a server process with the demo model and the OpenAI client."""

import asyncio
import base64
import importlib.util
import io
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import openai
import PIL.Image
import PIL.ImageDraw
import pytest

pytestmark = pytest.mark.posix

PICTURE = Path(__file__).parents[1] / "plugins/vlmkit-demo/src/vlmkit_demo/pictures/shapes.png"
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from vlmkit.cli import main
main()
"""
LIBRARIES = {"onnx": "onnxruntime", "torch": "torch"}
ENGINES = [name for name, library in LIBRARIES.items() if importlib.util.find_spec(library)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module", params=ENGINES)
def server(request):
    """A real `vlmkit serve demo`; ends it by SIGTERM and expects a clean exit."""
    port = free_port()
    command = [sys.executable, "-m", "vlmkit", "serve", "demo", "--set", f"server.port={port}"]
    command += ["--set", f"engine.use={request.param}"]
    url = f"http://127.0.0.1:{port}"
    # Whatever happens, its pipe is closed here: the garbage collector would blame another test.
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            wait_until_ready(process, url)
            yield f"{url}/v1"
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0, said.decode()
    assert b"Traceback" not in said


def wait_until_ready(process, url):
    """Ask until the server is ready; fail with its words if it ends or takes forever."""
    deadline = time.monotonic() + 600
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as probe:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                probe.get("/readyz", cast_to=object)
            except openai.APIError:
                time.sleep(0.2)
            else:
                return
    process.kill()
    pytest.fail(process.stderr.read().decode())


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server, api_key="none", max_retries=0) as made:
        yield made


def drawing(shape, color, kind, size=(320, 240)):
    """Draw one shape on a white ground, as a user would, and encode it."""
    picture = PIL.Image.new("RGB", size, "white")
    pen = PIL.ImageDraw.Draw(picture)
    left, top, side = size[0] // 2 - 60, size[1] // 2 - 60, 120
    box = (left, top, left + side, top + side)
    if shape == "circle":
        pen.ellipse(box, fill=color)
    else:
        pen.rectangle(box, fill=color)
    file = io.BytesIO()
    picture.save(file, kind)
    content = base64.b64encode(file.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{content}"


def question(text, *urls):
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize(("shape", "color"), [("circle", "red"), ("square", "blue")])
def test_it_says_what_is_drawn_in_a_file_of_either_format(client, kind, shape, color):
    messages = question("What is in this picture?", drawing(shape, color, kind))
    answer = client.chat.completions.create(model="demo", messages=messages)
    said = answer.choices[0].message.content
    assert shape in said.lower()
    assert color in said.lower()
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens > 30


def test_a_streamed_answer_is_the_same_text_in_pieces(client):
    messages = question("What is in this picture?", drawing("circle", "green", "PNG"))
    whole = client.chat.completions.create(model="demo", messages=messages)
    stream = client.chat.completions.create(
        model="demo", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(1 for piece in pieces if piece) > 3
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_two_pictures_in_one_question_are_told_apart(client):
    first, second = drawing("circle", "red", "PNG"), drawing("square", "blue", "PNG")
    messages = question("What is in the second picture?", first, second)
    answer = client.chat.completions.create(model="demo", messages=messages)
    said = answer.choices[0].message.content.lower()
    assert "blue" in said
    assert "red" not in said


def test_many_clients_at_once_get_what_one_alone_gets(server):
    pictures = [
        drawing(shape, color, "PNG")
        for shape in ("circle", "square")
        for color in ("red", "blue", "green")
    ]

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=server, api_key="none") as client:

            async def ask(url):
                messages = question("What is in this picture?", url)
                done = await client.chat.completions.create(model="demo", messages=messages)
                return done.choices[0].message.content

            alone = [await ask(url) for url in pictures]
            together = await asyncio.gather(*(ask(url) for url in pictures * 2))
            return alone, together

    alone, together = asyncio.run(ask_all())
    assert together == alone * 2


def test_a_file_that_is_no_picture_is_a_400_that_says_so(client):
    broken = "data:image/png;base64," + base64.b64encode(b"not a picture").decode()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="demo", messages=question("What?", broken))
    assert caught.value.code == "invalid_image"


def test_the_model_is_listed_and_an_unknown_one_is_not_found(client):
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=question("hi"))


@pytest.mark.skipif("onnx" not in ENGINES, reason="needs onnxruntime")
def test_the_packaged_model_answers_where_there_is_no_torch_and_says_nothing_of_it():
    command = [sys.executable, "-c", WITHOUT_TORCH, "ask", "demo", "What is in this picture?"]
    done = subprocess.run(
        [*command, "--image", str(PICTURE)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "A large blue circle on the left and a small red square on the right.\n"
    assert done.stderr == ""
