"""Ollama's API keeps the contract of APIs."""

import base64
import json
from collections.abc import Sequence
from typing import Any

from vlmkit.errors import RequestError
from vlmkit_ollama.api import OllamaApi
from vlmkit_server.interfaces.api import Api
from vlmkit_testing import ApiContract
from vlmkit_testing.contracts.api_contract import MODEL, Received, Sent
from vlmkit_testing.contracts.api_subject import ApiServer, ScriptedRunner


class _Ollama(ApiContract):
    def make(self) -> Api:
        return OllamaApi()

    def requests(self) -> Sequence[Sent]:
        message = {"role": "user", "content": "hello"}
        return [
            Sent("/api/chat", {"model": MODEL, "messages": [message]}),
            Sent("/api/generate", {"model": MODEL, "prompt": "hello"}),
            Sent("/api/embed", {"model": MODEL, "input": ["hello"]}),
            Sent("/api/embeddings", {"model": MODEL, "prompt": "hello"}),
            Sent("/api/show", {"model": MODEL}),
            *(Sent(f"/api/{name}", method="GET") for name in ("tags", "ps", "version")),
        ]


class TestChats(_Ollama):
    def chat(self, text: str, *, stream: bool, image_url: str = "") -> Sent | None:
        message = {"role": "user", "content": text}
        if image_url:
            message["images"] = [image_url.partition(",")[2]]
        return Sent("/api/chat", {"model": MODEL, "messages": [message], "stream": stream})

    def answer_of(self, received: Received) -> str:
        lines = map(json.loads, received.body.splitlines())
        return "".join(line["message"]["content"] for line in lines)

    def calls_of(self, received: Received) -> list[tuple[str, Any]]:
        lines = map(json.loads, received.body.splitlines())
        calls = [each for line in lines for each in line["message"].get("tool_calls", ())]
        return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


class TestPrompts(_Ollama):
    def chat(self, text: str, *, stream: bool, image_url: str = "") -> Sent | None:
        images = {"images": [image_url]} if image_url else {}
        return Sent("/api/generate", {"model": MODEL, "prompt": text, "stream": stream} | images)

    def answer_of(self, received: Received) -> str:
        return "".join(line["response"] for line in map(json.loads, received.body.splitlines()))


def refusal(error: RequestError, path: str, body: dict) -> str:
    (received,) = ApiServer(OllamaApi(), ScriptedRunner(error)).send(Sent(path, body))
    assert received.status == 400
    return json.loads(received.body)["error"]


def test_an_error_is_one_text() -> None:
    body = {"model": MODEL, "prompt": "x", "images": [base64.b64encode(b"none").decode()]}
    assert isinstance(refusal(RequestError("wrong"), "/api/generate", body), str)
    assert refusal(RequestError("too long", param="messages"), "/api/generate",
                   {"model": MODEL, "prompt": "x"}) == "prompt: too long"  # fmt: skip


def test_to_think_is_reported_as_ignored_where_the_model_cannot() -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": False}
    thoughts = (True, "high", False, None)
    sent = [Sent("/api/chat", body | {"think": think}) for think in thoughts]
    received = ApiServer(OllamaApi(), ScriptedRunner()).send(*sent)
    assert [each.status for each in received] == [200] * 4
    ignored = [each.headers.get("x-vlmkit-ignored") for each in received]
    assert ignored == ["think", "think", None, None]
