"""Requests of plain routes, headers and broken HTTP, and to servers with keys and limits."""

from collections.abc import Iterator
from dataclasses import replace

from same import answers, stored
from same.fields import APIS, USER
from same.request import Json, Request, get, post
from same.servers import KEY_OPTIONS

CHAT = {"model": "mock", "messages": [USER], "max_tokens": 5}
CHATS, FILES = "/v1/chat/completions", "/v1/files"
BROWSER = {"accept": "text/html"}
PATHS = (
    "/", "/docs", "/health", "/healthz", "/load", "/metrics", "/openapi.json", "/ping", "/props",
    "/readyz", "/slots", "/tokenizer_info", "/v1/capabilities", "/v1/models", "/v1/models/mock",
    "/v1/models/other-name", "/v1/models/nobody", "/models", "/models/mock", "/version",
    "/props?model=mock", "/slots?model=mock", "/tokenizer_info?model=mock", "/props?model=demo",
    "/tokenizer_info?model=demo", "/props?model=nobody", "/v1/nowhere", "/infill", "/rerank",
    "/v1/rerank", "/completion", "/score", "/pooling", "/classify", "/v1/audio/speech", "/api/chat",
    "/v1", "/v1/", "//", "/v1/models/", "/V1/MODELS", "/v1/models?x=y",
)  # fmt: skip
OTHERS = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
NOT_HERE = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS")
HEADERS: dict[str, dict[str, str]] = {
    "x-request-id": {"x-request-id": "mine-1"},
    "a bad x-request-id": {"x-request-id": "mine 1"},
    "x-vlmkit-strict": {"x-vlmkit-strict": "1"},
    "x-vlmkit-timing": {"x-vlmkit-timing": "1"},
    "x-request-timeout": {"x-request-timeout": "30"},
    "a bad x-request-timeout": {"x-request-timeout": "soon"},
    "anthropic headers": {"anthropic-version": "2023-06-01", "anthropic-beta": "x"},
    "a key that nobody asks for": {"authorization": "Bearer abc"},
    "an origin": {"origin": "https://app.example.com"},
    "another host": {"host": "example.com"},
    "localhost": {"host": "localhost"},
    "no type": {"content-type": ""},
    "a text": {"content-type": "text/plain"},
    "a charset": {"content-type": "application/json; charset=utf-8"},
    "another charset": {"content-type": "application/json; charset=latin-1"},
    "an encoding that is unknown": {"content-encoding": "br"},
    "gzip that is none": {"content-encoding": "gzip"},
    "accept": {"accept": "text/event-stream"},
    "connection: close": {"connection": "close"},
    "expect": {"expect": "100-continue"},
}
BODIES = {
    "no json": "{",
    "no object": "[]",
    "a text": '"Hello"',
    "null": "null",
    "nothing": "",
    "twice one key": '{"model": "mock", "model": "nobody", "messages": []}',
    "half a character": '{"model": "\\ud800"}',
    "deep": '{"x": ' + "[" * 600 + "]" * 600 + "}",
    "long numbers": '{"x": [' + ",".join(["1e5"] * 1100) + "]}",
    "not a number": '{"model": "mock", "temperature": NaN}',
}
_HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)
_SAID = '{"model":"mock","messages":[{"role":"user","content":"Hello"}]}'
RAW = {
    "chunked": f"{_HEAD}transfer-encoding: chunked\r\n\r\n{len(_SAID):x}\r\n{_SAID}\r\n0\r\n\r\n",
    "bad chunks": f"{_HEAD}transfer-encoding: chunked\r\n\r\nzz\r\n{_SAID}\r\n0\r\n\r\n",
    "two lengths": f"{_HEAD}content-length: 5\r\ncontent-length: 6\r\n\r\n{_SAID}",
    "length and chunks": f"{_HEAD}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bad length": f"{_HEAD}content-length: five\r\n\r\n{_SAID}",
    "no length": f"{_HEAD}\r\n",
    "no host": "GET /version HTTP/1.1\r\n\r\n",
    "an old version": "GET /version HTTP/1.0\r\nhost: localhost\r\n\r\n",
    "a version to come": "GET /version HTTP/3.0\r\nhost: localhost\r\n\r\n",
    "no request": "hello\r\n\r\n",
    "a bad header": "GET /version HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n",
    "a zero": "GET /ver\0sion HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a whole address": "GET http://localhost/version HTTP/1.1\r\nhost: localhost\r\n\r\n",
}


def requests() -> Iterator[Request]:
    """Yield all requests except those for answers and stored objects."""
    yield from _plain()
    yield from _spoilt()
    yield from _keys()
    yield from _tight()


def _plain() -> Iterator[Request]:
    """Yield each route by each method, after earlier requests have ended."""
    yield get("/readyz", "nothing runs", until=("models.mock.num_running", ["0"]))
    yield get("/load", "nothing is under way", until=("server_load", ["0"]))
    for path in PATHS:
        yield get(path)
        yield get(path, method="HEAD")
        yield get(path, f"GET {path} by a browser", headers=BROWSER)
        for method in OTHERS:
            yield get(path, method=method)
    posted = [api.path for api in APIS]
    posted += [FILES, "/v1/batches", "/v1/messages/batches", "/v1/models/load"]
    for path in (*posted, "/chat/completions", "/responses", "/apply-template"):
        for method in NOT_HERE:
            yield get(path, method=method)
    yield from [post("other path", path, CHAT) for path in ("/chat/completions", "/responses")]


def _spoilt() -> Iterator[Request]:
    """Yield headers, bodies other than JSON, and invalid HTTP."""
    for name, headers in HEADERS.items():
        request = post(f"header: {name}", CHATS, CHAT | {"probe": 1}, headers=headers)
        yield request
        yield request.streamed()
        yield get("/v1/models", f"/v1/models: header: {name}", headers=headers)
    for api in APIS:
        for name, text in BODIES.items():
            yield Request(f"{api.path}: body: {name}", "POST", api.path, text=text)
        zipped = {"content-encoding": "gzip"}
        yield post("gzip", api.path, api.base, gzip=True, headers=zipped)
        yield post("gzip, twice", api.path, api.base, gzip=True, headers={
            "content-encoding": "gzip, gzip"})  # fmt: skip
    for name, raw in RAW.items():
        yield Request(f"raw: {name}", "POST", "raw", raw=raw)
    slow = CHAT | {"messages": [answers.user(answers.script(text="Hi", prefill_latency_s=0.6))]}
    late = post("too late", CHATS, slow, headers={"x-request-timeout": "0.2"})
    yield from (late, late.streamed())


def _keys() -> Iterator[Request]:
    """Yield allowed and forbidden requests of keys."""
    asked = [
        post("a chat", CHATS, CHAT),
        post("a message", "/v1/messages", CHAT),
        post("a response", "/v1/responses", {"model": "mock", "input": "Hello"}),
        post("a vector", "/v1/embeddings", {"model": "mock", "input": "Hello"}),
        post("tokens", "/inference/v1/generate", {"model": "mock", "token_ids": [72]}),
        post("an order", "/v1/models/unload", {"model": "nobody"}),
        stored.upload("a file", {"file a.txt": "text"}),
        *map(get, ("/metrics", "/v1/models", "/v1/capabilities", "/readyz", "/healthz", "/load")),
        *map(get, ("/props", "/slots", "/version", "/openapi.json", "/", "/nowhere", "/v1/files")),
        get("/", "GET / by a browser", headers=BROWSER),
        get("/v1/models", method="OPTIONS"),
    ]
    keys = ("chat", "embed", "tokens", "metrics", "admin", "revoked")
    for request in asked:
        yield request.to("keys")
        for key in keys:
            yield _by(key, request)
        yield _by("chat", request, "authorization", "Bearer <<key chat>>")
    for name, value in {"wrong": "vlmkit-wrong", "empty": " ", "other": "sk-1"}.items():
        yield _by(name, asked[0], "x-api-key", value)
        yield _by(f"{name} bearer", asked[1], "authorization", f"Bearer {value}")
    yield _by("basic", asked[0], "authorization", "Basic YTpi")
    both = {"x-api-key": "<<key chat>>", "authorization": "Bearer <<key admin>>"}
    yield post("two keys", CHATS, CHAT).to("keys", **both)
    for key in (name for name in KEY_OPTIONS if name not in keys):
        picture = post("a picture", CHATS, CHAT | {"messages": [answers.PICTURES["a picture"]]})
        short = post("a short chat", CHATS, CHAT | {"max_tokens": 1})
        for request in (short, picture, picture, asked[1], asked[7], asked[0].streamed()):
            yield _by(key, request)


def _by(name: str, request: Request, header: str = "x-api-key", value: str = "") -> Request:
    named = replace(request, name=f"{request.name}, by {name} in {header}")
    return named.to("keys", **{header: value or f"<<key {name}>>"})


def _tight() -> Iterator[Request]:
    """Yield requests over the limits of a server."""
    long, many = "x" * 3000, {"messages": [USER] * 200}
    bodies: dict[str, dict[str, Json]] = {
        "a short one": {},
        "no model": {"model": None},
        "too long an answer": {"max_tokens": 17},
        "as long as may be": {"max_tokens": None},
        "too long a text": {"messages": [answers.user(long)]},
        "too large": {"messages": [answers.user(long * 10)]},
        "over the context": {"messages": [answers.user("x" * 300)]},
        "many messages": many,
        "three pictures": {"messages": [answers.user(*[answers.image("small.png")] * 3)]},
        "too many pixels": {"messages": [answers.user(answers.image("wide.png"))]},
        "unknown fields": {"probe": 1},
        "log-probabilities": {"logprobs": True, "top_logprobs": 20, "max_tokens": 16},
    }
    for name, fields in bodies.items():
        request = post(name, CHATS, CHAT | fields)
        yield from (request.to("tight"), request.streamed().to("tight"))
        yield post(name, "/v1/messages", CHAT | fields).to("tight")
    origins = ("https://app.example.com", "https://evil.example.com", "null")
    for number, origin in enumerate(origins):
        asked = {"origin": origin, "access-control-request-method": "POST"}
        for method in ("GET", "OPTIONS"):
            name = f"{method} from origin {number}"
            yield get("/v1/models", name, method=method, headers=asked).to("tight")
        yield post(f"from origin {number}", CHATS, CHAT, headers={"origin": origin}).to("tight")
    for path in ("/metrics", "/inference/v1/generate", "/v1/models/load", FILES, "/v1/batches"):
        yield get(path).to("tight")
        yield post("nothing", path, {}).to("tight")
    for name, text in {"one": "a", "two": "b", "three": "c", "large": "d" * 2000}.items():
        yield stored.upload(name, {"file a.txt": text}).to("tight")
    yield get(FILES, "files that are left").to("tight")
    batch = {"input_file_id": "file-none", "endpoint": CHATS, "completion_window": "24h"}
    yield post("none kept", "/v1/batches", batch).to("tight")
    response = {"model": "mock", "input": "Hi", "max_output_tokens": 5}
    yield post("not stored", "/v1/responses", response).to("tight")
    large = "GET /version HTTP/1.1\r\nhost: localhost\r\nx: " + "y" * 5000 + "\r\n\r\n"
    raw = {"large headers": large, "half a body": f"{_HEAD}content-length: 99\r\n\r\n{{"}
    raw |= {"half a head": _HEAD, "nothing": ""}
    for name, sent in raw.items():
        yield Request(f"raw: {name}", "POST", "raw", server="tight", raw=sent)
