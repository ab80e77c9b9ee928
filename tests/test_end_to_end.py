"""The product as users run it: a server process with the demo model, and official clients."""

import asyncio
import base64
import contextlib
import importlib.util
import io
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import anthropic
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


@pytest.fixture(scope="module", params=ENGINES)
def server(request, tmp_path_factory):
    """A real `vlmkit serve demo`; ends it by SIGTERM and expects a clean exit."""
    command = [sys.executable, "-m", "vlmkit", "serve", "demo", "--port", "0"]
    command += ["--set", f"engine.use={request.param}"]
    log = tmp_path_factory.mktemp("server") / "log"
    with (
        log.open("wb") as log_file,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log_file) as process,
    ):
        try:
            yield f"{ready_at(process, log)}/v1"
            process.send_signal(signal.SIGTERM)
            process.wait(300)
        finally:
            process.kill()
    assert process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def ready_at(process, log):
    """Wait for a server's model, and return its address; fail with its words if it ends."""
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        said = log.read_text()
        if "'demo' is ready\n" in said:
            return re.search(r"listening on (\S+)", said)[1]
        time.sleep(0.2)
    return pytest.fail(log.read_text())


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
def test_the_demo_names_shape_and_color_in_a_file_of_either_format(client, kind, shape, color):
    messages = question("What is in this picture?", drawing(shape, color, kind))
    answer = client.chat.completions.create(model="demo", messages=messages)
    said = answer.choices[0].message.content
    assert shape in said.lower()
    assert color in said.lower()
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens > 30


def test_a_streamed_answer_equals_the_whole_answer(client):
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


def test_the_anthropic_client_gets_the_same_answer_whole_and_streamed(server, client):
    url = drawing("circle", "green", "PNG")
    kind, data = url.removeprefix("data:").split(";base64,")
    shown = {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    asked = "What is in this picture?"
    messages = [{"role": "user", "content": [shown, {"type": "text", "text": asked}]}]
    same = client.chat.completions.create(
        model="demo", messages=question(asked, url), max_tokens=64
    )
    sent = {"model": "demo", "messages": messages}
    address = server.removesuffix("/v1")
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as other:
        whole = other.messages.create(max_tokens=64, **sent)
        with other.messages.stream(max_tokens=64, **sent) as stream:
            streamed = stream.get_final_message()
        counted = other.messages.count_tokens(**sent).input_tokens
    assert whole.content[0].text == streamed.content[0].text
    assert whole.content[0].text == same.choices[0].message.content
    assert whole.stop_reason == streamed.stop_reason == "end_turn"
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert counted == same.usage.prompt_tokens


def test_two_images_of_one_question_are_distinguished(client):
    first, second = drawing("circle", "red", "PNG"), drawing("square", "blue", "PNG")
    messages = question("What is in the second picture?", first, second)
    answer = client.chat.completions.create(model="demo", messages=messages)
    said = answer.choices[0].message.content.lower()
    assert "blue" in said
    assert "red" not in said


def test_concurrent_clients_get_the_answer_of_a_single_one(server):
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


def test_a_file_that_is_not_an_image_is_refused_with_400(client):
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
def test_log_probabilities_of_a_completion_equal_those_of_its_echo(client):
    """What was chosen one token at a time is read back at once, as a prompt that is echoed."""
    said = client.completions.create(
        model="demo", prompt="The picture shows", max_tokens=8, temperature=0, logprobs=1,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    ).choices[0]  # fmt: skip
    given = [*said.prompt_token_ids, *said.token_ids]
    read = client.completions.create(
        model="demo", prompt=given, max_tokens=0, echo=True, logprobs=1
    ).choices[0]
    assert len(read.logprobs.tokens) == len(given)
    assert read.logprobs.token_logprobs[0] is None
    num = len(said.logprobs.token_logprobs)
    assert 0 < num <= len(said.token_ids)
    start = len(said.prompt_token_ids)
    again = read.logprobs.token_logprobs[start : start + num]
    assert again == pytest.approx(said.logprobs.token_logprobs, abs=1e-3)
    pieces = client.completions.create(
        model="demo", prompt=["The picture shows", given], max_tokens=8, temperature=0, stream=True
    )
    texts = ["", ""]
    for piece in pieces:
        for choice in piece.choices:
            texts[choice.index] += choice.text
    assert all(texts)


def test_token_counts_of_an_image_equal_the_usage_of_its_answer(client):
    messages = question("What is it?", drawing("circle", "red", "PNG"))
    counted = client.post(
        "/../tokenize", body={"model": "demo", "messages": messages}, cast_to=object
    )
    answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=1)
    assert counted["count"] == answer.usage.prompt_tokens == len(counted["tokens"])
    details = answer.usage.prompt_tokens_details
    assert counted["image_tokens_each"] == details.image_tokens_each
    assert details.image_tokens > 0


def test_image_tokens_without_an_image_affect_no_other_request(client):
    messages = question("What is it?", drawing("circle", "red", "PNG"))
    tokens = client.post("/../tokenize", body={"messages": messages}, cast_to=object)["tokens"]
    with contextlib.suppress(openai.BadRequestError):
        client.completions.create(model="demo", prompt=tokens, max_tokens=4)
    answer = client.chat.completions.create(model="demo", messages=messages, temperature=0)
    assert "circle" in answer.choices[0].message.content


def test_embeddings_come_from_a_model_that_declares_them(client):
    (model,) = client.get("/capabilities", cast_to=object)["models"]
    if model["embedding_size"] is None:
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model="demo", input="a circle")
        return
    texts = ["a red circle", "a red circle", "it rains in the hills"]
    vectors = [each.embedding for each in client.embeddings.create(model="demo", input=texts).data]
    assert {len(vector) for vector in vectors} == {model["embedding_size"]}
    same, other = (
        sum(a * b for a, b in zip(vectors[0], vector, strict=True)) for vector in vectors[1:]
    )
    assert same == pytest.approx(1, abs=1e-4)
    assert other < same


def test_the_packaged_model_answers_without_torch_and_without_warnings():
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


@pytest.mark.slow
def test_the_installed_tokenizer_of_the_demo_passes_its_contract(tmp_path):
    """In every run, vlmkit-hf's tests hold tokenizers of families to the same contract."""
    command = [sys.executable, "-m", "vlmkit", "plugins", "check", "hf", "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
