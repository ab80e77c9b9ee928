"""Bodies of Anthropic's API, and its official client, for tests of ``/v1/messages``."""

import json

import anthropic
from running_server import image_url

PATH = "/v1/messages"


def client_of(server):
    return anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, http_client=server.http
    )


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def body(content="hello", **fields):
    """Return a request body with one question."""
    return {"model": "mock", "max_tokens": 64, "messages": [user(content)]} | fields


def ask(client, content="hello", **fields):
    return client.messages.create(**body(content, **fields))


def image(url=None):
    """Return a content block with an image."""
    data = (url or image_url()).partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def text(said):
    return {"type": "text", "text": said}


def events(server, sent):
    """Return the names and data of a stream's events."""
    found = []
    for event in server.post(sent | {"stream": True}, PATH).text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(data["type"] == name for name, data in found)
    return found
