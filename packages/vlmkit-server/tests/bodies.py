"""Minimal bodies of each route, and a function that adds a field to them."""

import json

import msgspec
from running_server import chat, image_url

from vlmkit_server.app import create_app
from vlmkit_server.settings.server import ServerSettings

_APP = create_app({}, msgspec.convert({"allow_generate": True}, ServerSettings))
READERS = {route.path: route.reader for route in _APP.state.apis.routes}
"""The reader of each route that decodes a body."""

RANKED = {"model": "mock", "query": "x", "documents": ["y"]}
SCORED = {"model": "mock", "text_1": "x", "text_2": "y"}
MINIMAL = {
    "/v1/chat/completions": chat(),
    "/v1/chat/completions/render": chat(),
    "/v1/completions": {"model": "mock", "prompt": "x"},
    "/v1/completions/render": {"model": "mock", "prompt": "x"},
    "/v1/embeddings": {"model": "mock", "input": "x"},
    "/v1/messages": chat(max_tokens=1),
    "/v1/messages/count_tokens": chat(),
    "/v1/messages/render": chat(max_tokens=1),
    "/v1/responses": {"model": "mock", "input": "x"},
    "/v1/responses/render": {"model": "mock", "input": "x"},
    "/v1/responses/input_tokens": {"model": "mock", "input": "x"},
    "/v1/rerank": RANKED,
    "/rerank": RANKED,
    "/v2/rerank": RANKED,
    "/v1/score": SCORED,
    "/score": SCORED,
    "/tokenize": {"model": "mock", "prompt": "x"},
    "/detokenize": {"model": "mock", "tokens": []},
}
OF_ASSISTANT = {
    f"messages.{name}" for name in ("audio", "function_call", "refusal", "partial", "prefix")
}


def with_field(body, field, value):
    """Return a copy of a body with a field in the first object that can hold it."""
    *parents, name = field.split(".")
    body = json.loads(json.dumps(body))
    if parents[:1] == ["messages"] and "messages" not in body:
        body = chat()
    inner = body
    for parent in parents:
        if parent == "content":
            inner[parent] = [{"type": "image_url", "image_url": {"url": image_url()}}]
            inner = inner[parent][0]
        elif parent == "messages":
            inner = inner[parent][0]
        else:
            inner = inner.setdefault(parent, {})
    inner[name] = value
    if field in OF_ASSISTANT:
        inner["role"] = "assistant"
    return body
