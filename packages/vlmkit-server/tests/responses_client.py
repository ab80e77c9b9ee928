"""Bodies of the Responses API, and answers that are validated against OpenAI's types."""

import json

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

PATH = "/v1/responses"
_EVENT = TypeAdapter(ResponseStreamEvent)


def body(said="hello", **fields):
    """Return a request body with one question."""
    return {"model": "mock", "input": said} | fields


def whole(server, said="hello", **fields):
    """Return a response, validated as OpenAI's type."""
    answer = server.post(body(said, **fields), PATH)
    assert answer.status_code == 200, answer.text
    return checked(answer.json())


def checked(data):
    assert data["object"] == "response"
    return Response.model_validate(data)


def events(server, said="hello", **fields):
    """Return the events of a stream, validated as OpenAI's types and numbered without gaps."""
    answer = server.post(body(said, **fields) | {"stream": True}, PATH)
    assert answer.status_code == 200, answer.text
    found = []
    for text in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = text.split("\n")
        event_data = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event_data['type']}"
        found.append(_EVENT.validate_python(event_data))
    assert [event.sequence_number for event in found] == list(range(len(found)))
    assert [event.type for event in found] == [type_of(event) for event in found]
    return found


def type_of(event):
    """Return the type of an event's class, to detect an event parsed as another class."""
    return type(event).model_fields["type"].annotation.__args__[0]


def refused(server, said="hello", **fields):
    """Return the error of a refused body."""
    answer = server.post(body(said, **fields), PATH)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    return answer.json()["error"]


def user(content):
    return {"role": "user", "content": content}


def text(said):
    return {"type": "input_text", "text": said}


def image(url):
    return {"type": "input_image", "image_url": url, "detail": "auto"}
