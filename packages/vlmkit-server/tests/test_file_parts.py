"""Files in messages of each API: images only, since the core's loader opens no other files."""

import base64
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest
from anthropic_client import ask, body, client_of, text, user
from running_server import chat, image_part, image_url, mock_pipeline, running

from vlmkit.kit.image_fetcher import ImageFetcher
from vlmkit.settings.fetch import FetchSettings
from vlmkit.settings.pipeline import PipelineSettings

URL = image_url(9, 7)
IMAGE_CONTENT = base64.b64decode(URL.partition(",")[2])
BARE = URL.partition(",")[2]
KEY = {"authorization": "Bearer none"}
STRANGE = base64.b64encode(b"once upon a time").decode()


@pytest.fixture(scope="module")
def client(server):
    return server.client()


@pytest.fixture(scope="module")
def file_id(client):
    return client.files.create(file=("teal.png", IMAGE_CONTENT), purpose="vision").id


@pytest.fixture(scope="module")
def expected(client):
    """Return the mock's answer about the image."""
    return answer_text(client, {"type": "image_url", "image_url": {"url": URL}})


def answer_text(client, *parts):
    content = [*parts, {"type": "text", "text": "?"}]
    answer = client.chat.completions.create(
        model="mock", messages=[{"role": "user", "content": content}]
    )
    return answer.choices[0].message.content


def file_part(**fields):
    return {"type": "file", "file": fields}


def error(server, part, **fields):
    parts = [{"type": "text", "text": "?"}, part]
    answer = server.post(chat(parts, **fields))
    assert answer.status_code in (400, 404)
    return answer.json()["error"]


def test_an_image_file_has_the_same_answer_however_it_is_sent(client, file_id, expected):
    assert "9x7" in expected
    for part in (
        file_part(file_data=URL, filename="teal.png"),
        file_part(file_data=BARE),
        file_part(file_id=file_id),
        file_part(file_url=URL),
        {"type": "image_url", "image_url": {"file_id": file_id}},
    ):
        assert answer_text(client, part) == expected


def test_the_responses_api_accepts_files(client, file_id, expected):
    for part in (
        {"type": "input_file", "file_data": URL, "filename": "teal.png"},
        {"type": "input_file", "file_id": file_id},
        {"type": "input_image", "file_id": file_id, "detail": "auto"},
    ):
        content = [part, {"type": "input_text", "text": "?"}]
        answer = client.responses.create(model="mock", input=[{"role": "user", "content": content}])
        assert answer.output_text == expected
        (item,) = client.responses.input_items.list(answer.id).data
        assert item.content[0].type == part["type"]
        assert item.content[0].file_id == part.get("file_id")
        again = client.responses.create(
            model="mock", previous_response_id=answer.id, input="and now?"
        )
        assert "9x7" in again.output_text


def test_anthropics_api_accepts_files(server, file_id, expected):
    client = client_of(server)
    source = {"type": "file", "file_id": file_id}
    for kind in ("image", "document"):
        answer = ask(client, [{"type": kind, "source": source}, text("?")])
        assert answer.content[0].text == expected
    used = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "document", "source": source}],
    }
    answer = client.messages.create(
        model="mock",
        max_tokens=64,
        messages=[
            user("look"),
            {"role": "assistant", "content": [used]},
            user([result]),
        ],
    )
    assert "9x7" in answer.content[0].text


def test_text_documents_are_part_of_the_prompt(server):
    client = client_of(server)
    plain = {"type": "text", "media_type": "text/plain", "data": "It rained."}
    parts = {"type": "content", "content": [text("It rained."), text("")]}
    bare = {"type": "content", "content": "It rained."}
    for source in (plain, parts, bare):
        document = {"type": "document", "source": source, "title": "Diary", "context": "1912"}
        answer = ask(client, [document, text("\nWhy?")])
        assert answer.content[0].text == "Diary\n1912\nIt rained.\nWhy?"


def test_unsupported_fields_of_a_document_are_refused_by_name(server):
    source = {"type": "text", "media_type": "text/plain", "data": "x"}
    for more, location in (
        ({"citations": {"enabled": True}}, "messages.content.citations.enabled"),
        ({"pages": "1"}, "messages[0].content[0].pages"),
        ({"max_file_tokens": 9}, "messages[0].content[0].max_file_tokens"),
    ):
        document = {"type": "document", "source": source} | more
        answer = server.post(body([document]), "/v1/messages")
        assert answer.status_code == 400
        assert location.partition(".")[0].partition("[")[0] in answer.json()["error"]["message"]
        assert more.popitem()[0] in answer.json()["error"]["message"]
    quiet = {"type": "document", "source": source, "citations": {"enabled": False}}
    assert server.post(body([quiet]), "/v1/messages").status_code == 200


def test_a_file_can_be_counted_rendered_and_embedded(server, file_id):
    parts = [file_part(file_id=file_id), {"type": "text", "text": "?"}]
    counted = server.post(chat(parts), "/tokenize", headers=KEY).json()
    answer = server.post(chat(parts), "/v1/chat/completions/render", headers=KEY).json()
    assert counted["tokens"] == answer["token_ids"]
    assert [(image["width"], image["page"]) for image in answer["images"]] == [(9, None)]
    embedded = server.post(chat(parts), "/v1/embeddings", headers=KEY)
    assert embedded.status_code == 200


def test_a_light_prompt_accepts_stored_images_but_no_files(server, file_id):
    image = {"type": "image_url", "image_url": {"file_id": file_id}}
    path = "/v1/chat/completions/render"
    light = server.post(chat([image], light=True), path, headers=KEY).json()
    assert [image["width"] for image in light["images"]] == [9]
    answer = server.post(chat([file_part(file_id=file_id)], light=True), path, headers=KEY)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0].file"


@pytest.mark.parametrize(
    ("part", "place", "problem"),
    [
        (file_part(), "file", "needs one of"),
        (file_part(file_data=URL, file_url=URL), "file", "needs one of"),
        (file_part(file_data="data:application/pdf,x"), "file", "must read"),
        (file_part(file_data="data:;base64,!!!!"), "file", "not valid base64"),
        (file_part(file_data=STRANGE), "file", "no media loader recognises"),
        (file_part(file_data=BARE, pages="1"), "file", "has none"),
        (file_part(file_data=BARE, pages="3-1"), "file.pages", "must rise"),
        (file_part(file_data=BARE, max_file_tokens=0), "file.max_file_tokens", "Expected"),
        (file_part(file_id="file-x"), "file", "no file of this id"),
        (file_part(file_url="https://example.com/x.pdf"), "file", "fetches no files by URL"),
        (image_part("https://example.com/x"), "image_url.url", "fetches no images by URL"),
        ({"type": "image_url", "image_url": {"file_id": "file-x"}}, "image_url.file_id", "no file"),
        ({"type": "image_url", "image_url": {}}, "image_url", "needs either"),
        ({"type": "image_url", "image_url": {"file_id": "x", "url": URL}}, "image_url", "either"),
    ],
)
def test_a_file_of_an_unsupported_format_is_refused_with_its_location(server, part, place, problem):
    found = error(server, part)
    assert problem in found["message"]
    assert found["param"].removeprefix("messages[0].content[1].") in (
        place,
        f"messages.content.{place}",
    )


def test_errors_of_files_have_the_location_in_the_format_of_the_api(server):
    file = {"type": "input_file", "file_data": STRANGE}
    items = [{"role": "user", "content": [{"type": "input_text", "text": "?"}, file]}]
    answer = server.post({"model": "mock", "input": items}, "/v1/responses")
    assert answer.json()["error"]["param"] == "input[0].content[1]"
    source = {"type": "base64", "media_type": "application/pdf", "data": STRANGE}
    answer = server.post(
        body([text("?"), {"type": "document", "title": "T", "source": source}]), "/v1/messages"
    )
    assert answer.json()["error"]["message"].startswith(
        "messages[0].content[1].source: the file is"
    )


def test_an_error_of_an_image_after_a_file_names_the_image(server):
    broken = base64.b64encode(
        base64.b64decode(image_url(300, 200).partition(",")[2])[:-30]
    ).decode()
    parts = [file_part(file_data=URL), image_part(f"data:image/png;base64,{broken}")]
    answer = server.post(chat(parts))
    assert answer.json()["error"]["param"] == "messages[0].content[1].image_url.url"
    answer = server.post(chat([image_part(URL), file_part(file_data=broken)]))
    assert answer.json()["error"]["param"] == "messages[0].content[1].file"


def test_files_of_other_tenants_are_not_found(server, file_id):
    other = server.client().with_options(api_key="other")
    with pytest.raises(openai.NotFoundError) as caught:
        answer_text(other, file_part(file_id=file_id))
    assert caught.value.param == "messages[0].content[0].file"


def test_the_number_and_size_of_files_are_limited(server):
    most = server.runner().facts.bounds.max_media
    answer = server.post(chat([file_part(file_data=URL)] * (most + 1)))
    assert answer.json()["error"]["code"] == "too_many_media"
    bounds = PipelineSettings(max_media_bytes=len(IMAGE_CONTENT) + 10)
    with running({"mock": mock_pipeline(settings=bounds)}) as small:
        assert small.post(chat([file_part(file_data=URL)])).status_code == 200
        answer = small.post(chat([file_part(file_data=URL)] * 2))
        assert answer.json()["error"]["code"] == "media_too_large"


def test_a_text_model_refuses_image_files():
    with running({"mock": mock_pipeline(takes_images=False)}) as server:
        answer = server.post(chat([file_part(file_data=URL)]))
        assert answer.json()["error"]["code"] == "media_not_supported"


class Site(BaseHTTPRequestHandler):
    """A web site with one image."""

    def do_GET(self):
        self.send_response(200 if self.path == "/picture" else 404)
        self.end_headers()
        self.wfile.write(IMAGE_CONTENT)

    def log_message(self, *_):
        pass


def test_a_file_url_is_fetched_like_an_image_url(monkeypatch):
    defaults = {**ImageFetcher.__init__.__kwdefaults__, "may_connect": lambda _: True}
    monkeypatch.setattr(ImageFetcher.__init__, "__kwdefaults__", defaults)
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{site.server_port}"
        with running(fetch=FetchSettings(enabled=True, allow_http=True)) as server:
            part = {"type": "input_file", "file_url": f"{url}/picture"}
            content = [part, {"type": "input_text", "text": "?"}]
            answer = server.client().responses.create(
                model="mock", input=[{"role": "user", "content": content}]
            )
            assert "9x7" in answer.output_text
            document = {"type": "document", "source": {"type": "url", "url": f"{url}/picture"}}
            assert "9x7" in ask(client_of(server), [document, text("?")]).content[0].text
            found = error(server, file_part(file_url=f"{url}/missing"))
            assert found["code"] == "file_url_not_allowed"
        site.shutdown()
        thread.join()
