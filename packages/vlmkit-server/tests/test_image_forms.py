"""The forms in which clients send an image: each is accepted, or refused with its location."""

import base64

import pytest
from running_server import chat, image_url

CONTENT = base64.b64encode(base64.b64decode(image_url(9, 7).partition(",")[2])).decode()
URL = f"data:image/png;base64,{CONTENT}"
LINES = "\r\n".join(CONTENT[at : at + 76] for at in range(0, len(CONTENT), 76))
SAFE = CONTENT.replace("+", "-").replace("/", "_").rstrip("=")
FORMS = {
    "a URL": {"url": URL},
    "a URL alone": URL,
    "lines": {"url": f"data:image/png;base64,{LINES}"},
    "no padding": {"url": URL.rstrip("=")},
    "alphabet of URLs": {"url": f"data:image/png;base64,{SAFE}"},
    "upper case": {"url": f"DATA:image/png;BASE64,{CONTENT}"},
    "jpg": {"url": f"data:image/jpg;base64,{CONTENT}"},
    "no type": {"url": f"data:;base64,{CONTENT}"},
    "no detail": {"url": URL, "detail": ""},
}


def post_message(server, message):
    return server.post({"model": "mock", "messages": [{"role": "user"} | message]})


def answer_text(answer):
    assert answer.status_code == 200, answer.text
    assert "x-vlmkit-ignored" not in answer.headers
    return answer.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("form", FORMS)
def test_an_image_is_accepted_in_each_form(server, form):
    part = {"type": "image_url", "image_url": FORMS[form]}
    assert answer_text(post_message(server, {"content": [part]})).startswith("image 1: 9x7")


@pytest.mark.parametrize("text", [CONTENT, URL, LINES])
def test_images_of_a_message_precede_its_content(server, text):
    part = {"type": "image_url", "image_url": {"url": image_url(8, 8)}}
    answer = answer_text(post_message(server, {"content": [part], "images": [text]}))
    assert answer.startswith("image 1: 9x7")
    assert "image 2: 8x8" in answer
    assert answer_text(post_message(server, {"content": "so", "images": [text]})).startswith(
        "image 1: 9x7"
    )


@pytest.mark.parametrize("url", ["malformed", CONTENT, "ftp://a/b.png", "file:///etc/passwd", ""])
def test_an_invalid_image_url_is_refused_with_its_location(server, url):
    for image in (url, {"url": url}):
        part = {"type": "image_url", "image_url": image}
        error = post_message(server, {"content": [part]}).json()["error"]
        location = "messages[0].content[0].image_url"
        assert error["param"] == (location if image is url else f"{location}.url")
        assert "data:image/png;base64" in error["message"]


@pytest.mark.parametrize("text", ["%%%", "QUJD", ""])
def test_an_invalid_image_of_the_images_field_is_refused_with_its_location(server, text):
    error = post_message(server, {"content": "so", "images": [CONTENT, text]}).json()["error"]
    assert (error["param"], error["code"]) == ("messages[0].images[1]", "invalid_image")


def test_an_image_of_anthropics_api_may_have_line_breaks_and_type_jpg(server):
    source = {"type": "base64", "media_type": "image/jpg", "data": LINES}
    body = {
        "model": "mock",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
    }
    answer = server.post(body, "/v1/messages")
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"][0]["text"].startswith("image 1: 9x7")


@pytest.mark.parametrize("image", [None, {}, "absent"])
def test_a_uuid_without_an_image_is_refused_with_what_to_send(server, image):
    part = {"type": "image_url", "uuid": "picture-1"}
    with_image = part | {"image_url": {"url": image_url()}}
    assert server.post(asking([with_image])).headers["x-vlmkit-ignored"] == "messages.content.uuid"
    refused = server.post(asking([part | ({} if image == "absent" else {"image_url": image})]))
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "messages[0].content[0].image_url")
    assert "send a data: URL, or the file_id of an image that /v1/files keeps" in error["message"]


def asking(parts):
    return chat() | {"messages": [{"role": "user", "content": parts}]}
