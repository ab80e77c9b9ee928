"""A protocol case: requests, requirements for their answers, and a verdict."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

MODEL = "MODEL"
"""Stands for the name of the served model, in bodies and paths."""

KEY = "API-KEY"
"""Stands for the server's API key, in headers."""

PAGE = "https://chat.example.com"
"""The origin that the servers list, as an operator would."""

Server = Literal["mock", "demo", "keyed"]
"""The mock; a real model; the mock where API keys are required."""

BOTH: tuple[Server, ...] = ("mock", "demo")
"""For cases whose meaning does not depend on what a model writes."""


@dataclass(frozen=True)
class Answer:
    """A response.

    Attributes:
        status: its HTTP status.
        headers: by lower-case names.
        text: its body.
    """

    status: int
    headers: Mapping[str, str]
    text: str

    @functools.cached_property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.text)

    @functools.cached_property
    def events(self) -> list[Any]:
        """The data of a stream's events, ``[DONE]`` left out."""
        lines = [line for line in self.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]

    @property
    def types(self) -> list[str]:
        """The types of a stream's events, in the Messages and Responses APIs."""
        return [event["type"] for event in self.events]

    @property
    def is_done(self) -> bool:
        """Whether a stream ended with ``[DONE]``."""
        return self.text.rstrip().endswith("data: [DONE]")

    @property
    def choice(self) -> Any:
        """The first choice."""
        return self.json["choices"][0]

    @property
    def content(self) -> Any:
        """The text of the first choice: of a chat, of a plain completion, or of a stream."""
        if self.text.startswith("{"):
            return (
                self.choice["message"]["content"]
                if "message" in self.choice
                else self.text_of_choice
            )
        parts = [choice.get("delta", choice) for choice in self.streamed]
        return "".join(part.get("content") or part.get("text") or "" for part in parts)

    @property
    def text_of_choice(self) -> str:
        """The text of the first choice of a plain completion."""
        text: str = self.choice["text"]
        return text

    @property
    def streamed(self) -> list[Any]:
        """All choices of a stream's events."""
        return [choice for event in self.events for choice in event["choices"]]

    @property
    def finishes(self) -> list[str]:
        """The finish reasons that a stream sent."""
        return [c["finish_reason"] for c in self.streamed if c["finish_reason"] is not None]

    @property
    def usage(self) -> Any:
        """The usage of an answer."""
        return self.json["usage"]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """Names and arguments of the first choice's tool calls, of a whole answer or a stream."""
        if self.text.startswith("{"):
            found = self.choice["message"].get("tool_calls") or []
            return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in found]
        parts: dict[int, list[str]] = {}
        for choice in self.streamed:
            for call in choice["delta"].get("tool_calls") or []:
                function = parts.setdefault(call["index"], ["", ""])
                function[0] += call["function"].get("name") or ""
                function[1] += call["function"].get("arguments") or ""
        return [(name, json.loads(arguments)) for name, arguments in parts.values()]

    @property
    def error(self) -> str:
        """What an error is about and its message, as Anthropic's API has them together."""
        error = self.json["error"]
        return f"{error.get('param')}: {error['message']}"


@dataclass(frozen=True)
class Call:
    """One request.

    Attributes:
        path: what it is sent to, query included.
        body: sent as JSON; bytes are sent as they are.
        method: the HTTP method.
        headers: sent besides ``content-type`` and the server's API key; an empty value removes
            one of them.
        form: fields and one file of a form, in place of a body.
    """

    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, Any] | None = None


Next = Call | Callable[[Sequence[Answer]], Call]
"""A request, or what makes it of the answers so far."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a test of another server holds, and what this one does.

    Attributes:
        source: file and name of the test.
        name: what is asked and expected, in words.
        calls: requests, sent one after the other.
        status: the status of the last answer.
        holds: what must be true of the answers; of a rejected case, what the test holds there.
        names: what an error must contain in its message or its ``param``: the field or the route.
        rejected: why this server refuses what the other one answers; empty where it passes.
        otherwise: why it answers something else.
        servers: which servers it is tried on.
    """

    source: str
    name: str
    calls: Sequence[Next]
    status: int = 200
    holds: Callable[..., bool] = lambda *_answers: True
    names: str = ""
    rejected: str = ""
    otherwise: str = ""
    servers: Sequence[Server] = ("mock",)

    @property
    def verdict(self) -> str:
        """What the page says."""
        if self.rejected:
            return f"rejected because {self.rejected}"
        return f"answered otherwise because {self.otherwise}" if self.otherwise else "passes"


def get(path: str, **headers: str) -> Call:
    """Return a request without a body."""
    return Call(path, method="GET", headers={k.replace("_", "-"): v for k, v in headers.items()})


def script(**directive: Any) -> str:
    """Return what makes the mock write a given answer, in place of a real model's own choice."""
    return json.dumps({"mock": directive})


def user(content: Any) -> list[dict[str, Any]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": content}]


def filled(value: Any, model: str) -> Any:
    """Return a body or a path with the name of the served model in it."""
    if isinstance(value, dict):
        return {key: filled(each, model) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [filled(each, model) for each in value]
    return value.replace(MODEL, model) if isinstance(value, str) else value
