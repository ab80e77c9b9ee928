"""Valid requests for every operation, and requests with a chosen value at any declared field.

A body is built from the schema of the operation: what is required, what leads to the field, and
the companions without which the field has no effect. Nothing is sent here.
"""

import base64
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from attack.declared import ITEM, KEY, VALUE, Document, Field, Json

MODEL, SPARE = "mock", "spare"
SAMPLE = object()
"""Stands for a sample of the field's own type."""

Body = dict[str, Any]


@dataclass(frozen=True)
class Verbatim:
    """A piece of JSON that is sent byte by byte."""

    text: bytes


class Sent(NamedTuple):
    """One request as it is sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes


def small_png() -> bytes:
    """Return an image of 8 by 6 pixels."""
    import PIL.Image

    content = io.BytesIO()
    PIL.Image.new("RGB", (8, 6), "teal").save(content, "PNG")
    return content.getvalue()


PNG_TEXT = base64.b64encode(small_png()).decode()
PNG_URL = f"data:image/png;base64,{PNG_TEXT}"
PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>endobj
trailer<</Root 1 0 R>>
"""
PDF_TEXT = base64.b64encode(PDF).decode()
USER: Body = {"role": "user", "content": "Hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}
USED = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
RUN = {"type": "mcp_tool_use", "id": "c1", "name": "look", "server_name": "s", "input": {}}
CHAT_LINE = {
    "custom_id": "one",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": MODEL, "messages": [USER], "max_tokens": 1},
}
JSONL = json.dumps(CHAT_LINE).encode() + b"\n"
SAMPLES: dict[str, Any] = {
    "arguments": "{}",
    "content": "Hello",
    "data": PNG_TEXT,
    "file_data": PNG_TEXT,
    "file_url": PNG_URL,
    "grammar": 'start: "a" | "b"\n',
    "guided_grammar": 'start: "a" | "b"\n',
    "guided_json": {"type": "object"},
    "guided_regex": "[ab]+",
    "image_url": PNG_URL,
    "json": {"type": "object"},
    "model": MODEL,
    "name": "look",
    "pages": "1",
    "params": {"model": MODEL, "max_tokens": 1, "messages": [USER]},
    "regex": "[ab]+",
    "schema": {"type": "object"},
    "tool_call_id": "c1",
    "tool_use_id": "c1",
    "url": PNG_URL,
    "custom_id": "one",
    "completion_window": "24h",
    "request_id": "r1",
    "offset": 0,
    "length": 0,
}
"""What fields of these names hold; a schema does not say it."""

ONE_OF = [
    ("url", "file_id"),
    ("image_url", "file_id"),
    ("file_data", "file_id", "file_url"),
    ("content", "tool_calls", "refusal"),
]
"""Fields of which an object needs one."""

PAGED = ("pages", "max_file_tokens")

LIMITED = {
    "/v1/chat/completions": {"max_tokens": 2},
    "/invocations": {"max_tokens": 2},
    "/v1/completions": {"max_tokens": 2},
    "/v1/messages": {"max_tokens": 2},
    "/v1/responses": {"max_output_tokens": 2, "store": False},
    "/inference/v1/generate": {"sampling_params": {"max_tokens": 2}},
}
OF_CHATS = frozenset(
    {
        *("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
        *("max_image_tokens", "mm_processor_kwargs", "reasoning_effort"),
    }
)
"""Fields of ``/tokenize`` that need messages."""

RANKED = {"query": "a", "documents": ["a", "b"]}
NEEDED: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": [USER], "stream": False},
    "/api/generate": {"prompt": "Hello", "stream": False},
    "/api/embed": {"input": "Hello"},
    "/api/embeddings": {"prompt": "Hello"},
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), RANKED),
}
"""Fields without which a body asks for nothing."""

PAIRS = (
    ("data_1", "data_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("text_1", "text_2"),
)
"""Fields of a score that belong together."""

CHATS = ("/v1/chat/completions", "/v1/embeddings", "/tokenize")


class Bodies:
    """Builds requests.

    Args:
        document: the declared fields.
        stored: ids of things that exist on the server, by the name of a field or path parameter.
        model: the one that is asked.
    """

    def __init__(
        self, document: Document, stored: Mapping[str, str] | None = None, model: str = MODEL
    ) -> None:
        self._document, self._model = document, model
        self._operations = {(m, p): operation for m, p, operation in document.operations()}
        self.stored = dict(stored or {})

    def request(self, field: Field, value: Any = SAMPLE) -> Sent:
        """Return a valid request except for the value at one field."""
        operation = self._operations[field.method, field.route]
        path, headers = field.route, {"x-request-id": "attack"}
        query: dict[str, str] = {}
        for each in operation.get("parameters", ()):
            said = str(self._text(self._sample(each["schema"], each["name"])))
            if (each["in"], each["name"]) == (field.where, field.name):
                said = said if value is SAMPLE else str(value)
                query |= {field.name: said} if field.where == "query" else {}
                headers |= {field.name: said} if field.where == "header" else {}
            if each["in"] == "path":
                if value is SAMPLE or each["name"] != field.name:
                    is_kept = field.method != "delete" and not field.route.endswith("cancel")
                    said = MODEL if each["name"] == "name" else self.stored.get(each["name"], "1")
                    said = said if is_kept else "1"
                path = path.replace(f"{{{each['name']}}}", quoted(said))
        if query:
            path += "?" + "&".join(f"{name}={quoted(said)}" for name, said in query.items())
        content = b""
        if "requestBody" in operation:
            kind, content = self._content(operation["requestBody"]["content"], field, value)
            headers["content-type"] = kind
        return Sent(field.method.upper(), path, headers, content)

    def _content(self, content: Json, field: Field, value: Any) -> tuple[str, bytes]:
        (kind,) = content
        schema = content[kind]["schema"]
        steps = field.steps if field.where in ("json", "form") else ()
        if kind == "application/json":
            body = self._built(schema, steps, value) if steps else self._sample(schema)
            return kind, encoded(self._completed(field, body))
        form = self._object(self._document.resolved(schema)[0]) | {"file": JSONL}
        if steps:
            inner = self._document.resolved(schema)[0]["properties"][steps[0]]
            form[steps[0]] = self._sample(inner) if value is SAMPLE else value
        if steps[:1] == ("file",) and value is SAMPLE:
            form["file"] = JSONL
        return multipart(form)

    def body(self, field: Field, value: Any = SAMPLE) -> Body:
        """Return the body of such a request before it is encoded."""
        operation = self._operations[field.method, field.route]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        return self._completed(field, self._built(schema, field.steps, value))

    def item(self, field: Field) -> list[Any]:
        """Return a list of one sample of a list's items."""
        return [self._sample(field.schema.get("items", {}), field.name)]

    def _built(self, schema: Json, steps: tuple[str, ...], value: Any, name: str = "") -> Any:
        if not steps:
            return self._sample(schema, name) if value is SAMPLE else value
        schema, _ = self._document.resolved(schema)
        step, rest = steps[0], steps[1:]
        if step[0] == "|":
            return self._built(schema["anyOf"][int(step[1:])], rest, value, name)
        if step == ITEM:
            return [self._built(schema["items"], rest, value, name)]
        if step == VALUE:
            return {"1": self._built(schema["additionalProperties"], rest, value, name)}
        if step == KEY:
            inner = schema.get("additionalProperties") or {}
            key = "1" if value is SAMPLE else str(value)
            return {key: self._sample(inner if isinstance(inner, Mapping) else {}, name)}
        made = self._object(schema, step)
        return made | {step: self._built(schema["properties"][step], rest, value, step)}

    def _object(self, schema: Json, step: str = "") -> Body:
        """Return an object with its required fields, its tags, and one option of each choice."""
        required, known = schema.get("required", ()), schema.get("properties", {})
        made = {
            name: self._sample(inner, name)
            for name, inner in known.items()
            if name in required or (len(inner.get("enum", ())) == 1 and "default" not in inner)
        }
        for choice in ONE_OF:
            if {*choice} <= {*known} and not {*choice} & {*made, step}:
                made[choice[0]] = self._sample(known[choice[0]], choice[0])
        if step in PAGED and "file_data" in made:
            made["file_data"] = PDF_TEXT
        return made

    def _sample(self, schema: Json, name: str = "") -> Any:
        """Return a value that a schema allows."""
        schema, _ = self._document.resolved(schema)
        if "anyOf" in schema:
            return self._sample(schema["anyOf"][0], name)
        if "enum" in schema:
            return self._text(schema["enum"][0])
        kind = schema.get("type")
        known = self.stored.get(name, SAMPLES.get(name))
        if known is not None and kind in (None, {str: "string", int: "integer"}.get(type(known))):
            return known
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            least = schema.get("minItems", int("choice" in name))
            return [self._sample(schema.get("items", {}), name) for _ in range(least)]
        if kind in ("integer", "number"):
            return max(schema.get("minimum", 0), min(1, schema.get("maximum", 1)))
        samples = {"boolean": False, "null": None, "string": self._matching(schema)}
        return samples.get(str(kind), {"a": 1})

    @staticmethod
    def _matching(schema: Json) -> str:
        """Return a text that a schema allows."""
        if schema.get("maxLength") == 0:
            return ""
        return "0" * 64 if "0-9a-f" in schema.get("pattern", "") else "a1"

    @staticmethod
    def _text(value: Any) -> Any:
        return "1" if value == "a1" else value

    def _completed(self, field: Field, body: Any) -> Any:
        """Add the companions without which a field has no effect."""
        if not isinstance(body, dict):
            return body
        base = field.route.removesuffix("/render")
        limits = LIMITED.get(base, {})
        body = merged(body, {} if "max_completion_tokens" in body else limits)
        if field.name in ("parameters", "input_schema") and "input_tokens" not in field.route:
            body["tool_choice"] = "required" if field.name == "parameters" else {"type": "any"}
        if field.steps[:1] != ("model",) and field.route not in (
            "/v1/batches",
            "/v1/messages/batches",
        ):
            body["model"] = self._model
        if "load" in base and body.get("model") == MODEL:
            body["model"] = SPARE  # whoever is honest asks the other
        complete(base, body)
        return body


def complete(base: str, body: Body) -> None:
    """Add the companion fields that fields of a body need, by the route without ``/render``."""
    if base == "/v1/chat/completions" and "top_logprobs" in body:
        body.setdefault("logprobs", True)
    if base in CHATS:
        _complete_chat(body)
    elif base.startswith("/v1/messages"):
        _complete_messages(body)
    elif base.startswith("/v1/responses"):
        _complete_responses(body)
    if base == "/v1/embeddings" and "messages" not in body:
        body.setdefault("input", "Hello")
    if base == "/tokenize" and not {"messages", "prompt"} & {*body}:
        body |= {"messages": [USER]} if OF_CHATS & {*body} else {"prompt": "Hello"}
    _complete_scores(base, body)
    _add_companions(base, body)


def _complete_scores(base: str, body: Body) -> None:
    """Add the fields that the routes of scores and of Ollama's API need."""
    for name, value in NEEDED.get(base, {}).items():
        body.setdefault(name, value)
    for document in body["documents"] if base.endswith("/rerank") else ():
        if isinstance(document, dict) and not {"text", "image", "content"} & {*document}:
            document["text"] = "a"
    if base in ("/score", "/v1/score"):
        pair = next((pair for pair in PAIRS if {*pair} & {*body}), PAIRS[-1])
        for name in pair:
            body.setdefault(name, "a")


def _complete_chat(body: Body) -> None:
    """Give a tool's result its call, and an assistant's turn a question."""
    if not (first := first_object(body.get("messages"))):
        return
    role = first.get("role")
    if role == "tool":
        body["messages"] = [USER, CALLING, *body["messages"]]
    elif role == "assistant":
        results = [
            {"role": "tool", "tool_call_id": call.get("id"), "content": "1"}
            for call in (first_object(first.get("tool_calls")),)
            if call
        ]
        open_end = first.get("prefix") or first.get("partial")
        body["messages"] = [USER, *body["messages"], *([] if open_end else [*results, USER])]


def _complete_messages(body: Body) -> None:
    if not (first := first_object(body.get("messages"))):
        return
    blocks = first.get("content")
    block = first_object(blocks)
    kinds = [block.get("type")]
    used = {"role": "assistant", "content": [USED]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]}
    if first.get("role") == "assistant":
        if "mcp_tool_result" in kinds:
            first["content"] = [RUN, *blocks]
        elif "mcp_tool_use" in kinds:
            done = {"type": "mcp_tool_result", "tool_use_id": block.get("id"), "content": "1"}
            first["content"] = [*blocks, done]
        after = []
        if "tool_use" in kinds:
            result["content"][0]["tool_use_id"] = block.get("id")
            after = [result]
        body["messages"] = [USER, *body["messages"], *(after or [USER])]
    elif "tool_result" in kinds:
        body["messages"] = [USER, used, *body["messages"]]
    elif first.get("role") == "system":
        body["messages"] = [USER, *body["messages"], USER]


def _complete_responses(body: Body) -> None:
    if "previous_response_id" not in body:
        body.setdefault("input", "Hello")
    if not (item := first_object(body.get("input"))):
        return
    if "output" in item:
        item |= {"type": "function_call_output", "call_id": "c1"}
        call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        body["input"] = [USER, call, item]
    elif {"server_label", "error"} & {*item}:
        item |= {"type": "mcp_call", "id": "c1", "name": "look", "arguments": "{}"}
        item.setdefault("server_label", "s")
        body["input"] = [USER, item, USER]
    elif {"arguments", "name", "call_id"} & {*item}:
        item.setdefault("arguments", "{}")
        item |= {"type": "function_call", "name": item.get("name", "look")}
        item.setdefault("call_id", "c1")
        done = {"type": "function_call_output", "call_id": item["call_id"], "output": "1"}
        body["input"] = [item, done]
    elif "summary" in item:
        item |= {"type": "reasoning", "id": "r1"}
        body["input"] = [item, USER]
    elif "type" not in item:
        kind = first_object(item.get("content")).get("type")
        if kind == "reasoning_text":
            item |= {"type": "reasoning", "id": "r1", "summary": []}
            body["input"] = [item, USER]
            return
        item.setdefault("role", "assistant" if kind == "output_text" else "user")
        item.setdefault("content", "Hello")


def first_object(values: Any) -> Body:
    """Return the first item of a list if it is an object, else an empty object."""
    is_list = isinstance(values, list) and bool(values)
    return values[0] if is_list and isinstance(values[0], dict) else {}


TOOL = {"type": "function", "function": {"name": "look"}}


def _add_companions(base: str, body: Body) -> None:
    if "stream_options" in body:
        body["stream"] = True
    if isinstance(body.get("tool_choice"), dict | str) and "tools" not in body:
        own = {"name": "look", "input_schema": {"type": "object"}}
        kind = body["tool_choice"].get("type") if isinstance(body["tool_choice"], dict) else ""
        if base.startswith("/v1/messages") or kind in ("any", "tool"):
            body["tools"] = [own]
        elif "input" in body:
            body["tools"] = [{"type": "function", "name": "look"}]
        else:
            body["tools"] = [TOOL]


def merged(body: Body, more: Mapping[str, Any]) -> Body:
    """Return a body with more fields; existing ones stay."""
    made = dict(body)
    for name, value in more.items():
        if isinstance(made.get(name), dict) and isinstance(value, Mapping):
            made[name] = merged(made[name], value)
        else:
            made.setdefault(name, value)
    return made


def encoded(body: Any) -> bytes:
    """Return the JSON of a body; pieces that are :class:`Verbatim` stand in it as they are."""
    pieces: list[bytes] = []

    def marked(value: Verbatim) -> str:
        pieces.append(value.text)
        return f"@@verbatim {len(pieces) - 1}@@"

    content = json.dumps(body, default=marked).encode()
    for number, text in enumerate(pieces):
        content = content.replace(f'"@@verbatim {number}@@"'.encode(), text)
    return content


def multipart(form: Mapping[str, Any], boundary: str = "attack-boundary") -> tuple[str, bytes]:
    """Return the media type and the content of a form; the field ``file`` is a file."""
    content = b""
    for name, value in form.items():
        said = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        label = '; filename="a.jsonl"' if name == "file" else ""
        head = f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"{label}\r\n\r\n'
        content += head.encode() + said + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", content + f"--{boundary}--\r\n".encode()


def quoted(text: str) -> str:
    """Return a text in the quoting of URLs."""
    from urllib.parse import quote

    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def store(send: Callable[[Sent], Any]) -> dict[str, str]:
    """Store a file, a response and batches on a server; return their ids by the names of fields.

    Args:
        send: sends a request and returns the decoded answer.
    """

    def posted(path: str, body: Body) -> str:
        headers = {"content-type": "application/json"}
        return str(send(Sent("POST", path, headers, encoded(body)))["id"])

    def uploaded(content: bytes, purpose: str) -> str:
        kind, form = multipart({"file": content, "purpose": purpose})
        return str(send(Sent("POST", "/v1/files", {"content-type": kind}, form))["id"])

    lines, image = uploaded(JSONL, "batch"), uploaded(base64.b64decode(PNG_TEXT), "vision")
    response = posted("/v1/responses", {"model": MODEL, "input": "Hello", "max_output_tokens": 2})
    batch = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    one = {"custom_id": "one", "params": SAMPLES["params"]}
    return {
        "input_file_id": lines,
        "file_id": image,
        "response_id": response,
        "previous_response_id": response,
        "batch_id": posted("/v1/batches", {"input_file_id": lines} | batch),
        "message_batch_id": posted("/v1/messages/batches", {"requests": [one]}),
    }
