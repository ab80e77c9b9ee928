"""Documents over HTTP: a server process, the real reader of PDF files, both official clients."""

import base64
import io
import re
import subprocess
import sys
import time
from pathlib import Path

import anthropic
import openai
import pytest
from PIL import Image as PilImage

pytest.importorskip("pypdfium2")
pytestmark = pytest.mark.posix

GUIDES = [
    (Path(__file__).parents[1] / "docs/how-to" / name).read_text()
    for name in ("serve.md", "serve-files-and-batches.md")
]
COLOURS = ("red", "green", "blue", "white", "black")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    patient = ("--set", "media_loaders.pdf.timeout_s=1000")
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0", *patient]
    with log.open("wb") as said, subprocess.Popen(command, stderr=said) as process:
        try:
            deadline = time.monotonic() + 300
            while "'mock' is ready\n" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield re.search(r"listening on (\S+)", log.read_text())[1]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def own(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def document(num_pages=3, size=(200, 100)):
    pages = [PilImage.new("RGB", size, COLOURS[n % len(COLOURS)]) for n in range(num_pages)]
    content = io.BytesIO()
    pages[0].save(content, "PDF", save_all=True, append_images=pages[1:])
    return content.getvalue()


def encoded(data):
    return base64.b64encode(data).decode()


def data_url(data):
    return f"data:application/pdf;base64,{encoded(data)}"


def ask(client, file, **extra):
    content = [{"type": "file", "file": file}, {"type": "text", "text": "?"}]
    return client.chat.completions.create(
        model="mock", messages=[{"role": "user", "content": content}], extra_body=extra
    )


def pages_of(answer):
    return [image["page"] for image in answer.image_transforms]


def digests(text):
    return re.findall(r"sha256:(\w+)", text)


def refused(client, file, **extra):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, file, **extra)
    assert caught.value.param == "messages[0].content[0].file"
    return caught.value


def test_each_api_shows_the_same_pages_in_the_same_order(client, own):
    data = document(3)
    sent = client.files.create(file=("report.pdf", data), purpose="user_data")
    expected = ask(client, {"file_data": data_url(data), "filename": "report.pdf"})
    text = expected.choices[0].message.content
    assert text.count("400x200") == len(set(digests(text))) == 3
    assert ask(client, {"file_id": sent.id}).choices[0].message.content == text
    for part in (
        {"type": "input_file", "file_data": data_url(data), "filename": "report.pdf"},
        {"type": "input_file", "file_id": sent.id},
    ):
        said = [part, {"type": "input_text", "text": "?"}]
        answer = client.responses.create(model="mock", input=[{"role": "user", "content": said}])
        assert answer.output_text == text
    uploaded = own.beta.files.upload(file=("report.pdf", data, "application/pdf"))
    base64_source = {"type": "base64", "media_type": "application/pdf", "data": encoded(data)}
    for source in (base64_source, {"type": "file", "file_id": uploaded.id}):
        said = [{"type": "document", "source": source}, {"type": "text", "text": "?"}]
        answer = own.beta.messages.create(
            model="mock", max_tokens=500, messages=[{"role": "user", "content": said}]
        )
        assert answer.content[0].text == text


def test_only_selected_pages_are_shown_and_reported(client):
    whole = digests(ask(client, {"file_data": data_url(document(4))}).choices[0].message.content)
    file = {"file_data": data_url(document(4)), "pages": "2,4"}
    answer = ask(client, file, return_image_transforms=True)
    assert pages_of(answer) == [2, 4]
    assert digests(answer.choices[0].message.content) == [whole[1], whole[3]]


def test_a_document_that_does_not_fit_is_refused_unless_pages_are_selected(client):
    data = data_url(document(20))
    error = refused(client, {"file_data": data})
    assert error.code == "too_many_images"
    assert "20 pages are over the limit of 16 images" in str(error)
    assert refused(client, {"file_data": data, "pages": "1-17"}).code == "too_many_images"
    assert refused(client, {"file_data": data, "pages": "21"}).code == "pages_not_found"
    answer = ask(client, {"file_data": data, "pages": "5-20"}, return_image_transforms=True)
    assert pages_of(answer) == list(range(5, 21))


def test_pages_are_limited_to_a_number_of_tokens(client):
    file = {"file_data": data_url(document(3, (600, 600)))}

    def tokens(**more):
        usage = ask(client, file | more).usage
        return usage.prompt_tokens_details.image_tokens_each

    whole = tokens()
    assert len(whole) == 3
    less = tokens(max_file_tokens=sum(whole) // 2)
    assert len(less) == 3
    assert sum(less) <= sum(whole) // 2
    assert tokens(max_image_tokens=2) == [2, 2, 2]
    assert refused(client, file | {"max_file_tokens": 2}).code == "image_over_budget"


def test_an_invalid_document_is_refused_and_others_are_answered(client):
    for data in (b"%PDF-1.7 no more", document(1)[:80], b"%PDF-" + bytes(10_000)):
        assert "document" in str(refused(client, {"file_data": encoded(data)}))
    assert ask(client, {"file_data": data_url(document(1))}).choices[0].message.content


def test_a_document_is_counted_and_its_pages_are_rendered(client):
    content = [{"type": "file", "file": {"file_data": data_url(document(2))}}]
    body = {"model": "mock", "messages": [{"role": "user", "content": content}]}
    made = client.post("/chat/completions/render", body=body, cast_to=object)
    assert [(image["width"], image["page"]) for image in made["images"]] == [(400, 1), (400, 2)]
    with pytest.raises(openai.BadRequestError, match="cannot be rendered lightly"):
        client.post("/chat/completions/render", body=body | {"light": True}, cast_to=object)


def test_capabilities_state_that_documents_can_be_opened(client):
    capabilities = client.get("/capabilities", cast_to=object)
    assert set(capabilities["models"][0]["media_loaders"]) >= {"image", "pdf"}


def test_the_program_of_the_guide_runs(url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("report.pdf").write_bytes(document(4))
    (first, *_), (documents, *_) = (
        re.findall(r"```python\n(.*?)```", g, re.DOTALL) for g in GUIDES
    )
    program = f"from pathlib import Path\n{first}{documents}client.close()\n"
    program = program.replace('"demo"', '"mock"').replace("http://127.0.0.1:8000", url)
    exec(program, {})
    assert capsys.readouterr().out.count("400x200") == 2
