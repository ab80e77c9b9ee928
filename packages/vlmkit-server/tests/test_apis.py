"""APIs as plugins: the server's own pass the contract, and faulty ones are refused by name."""

import asyncio
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest
from litestar import Controller, get
from litestar.response.base import ASGIResponse
from running_server import eventually, running

from vlmkit.config import read_layers
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.errors import PluginError
from vlmkit.running.faults.attribution import ComponentNames
from vlmkit_server.apis.builtin import APIS
from vlmkit_server.apis.openai_chat.events import AnswerEvents
from vlmkit_server.apis.openai_chat.route import ChatApi
from vlmkit_server.app import create_app
from vlmkit_server.commands.components import apis
from vlmkit_server.http.operation import Operation
from vlmkit_server.interfaces.api import Route
from vlmkit_testing import ApiContract
from vlmkit_testing.contracts.api_contract import MODEL, Sent
from vlmkit_testing.contracts.api_subject import ApiServer, ScriptedRunner

HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


def events(received):
    """Return the JSON data of server-sent events."""
    lines = [line.removeprefix(b"data: ") for line in received.body.splitlines()]
    return [msgspec.json.decode(line) for line in lines if line.startswith(b"{")]


def called(name, *arguments):
    """Return a call, of which the JSON text of the arguments may come in pieces."""
    return name, msgspec.json.decode("".join(arguments))


class TestChatApi(ApiContract):
    path = "/v1/chat/completions"

    def make(self):
        return APIS["openai-chat"]

    def requests(self):
        paths = (self.path, f"{self.path}/render", f"{self.path}/input_tokens")
        return [Sent(path, HELLO) for path in paths]

    def chat(self, text, *, stream, image_url=""):
        image = [{"type": "image_url", "image_url": {"url": image_url}}] if image_url else []
        content = [*image, {"type": "text", "text": text}]
        messages = [{"role": "user", "content": content}]
        return Sent(self.path, {"model": MODEL, "messages": messages, "stream": stream})

    def answer_of(self, received):
        if "event-stream" in received.headers["content-type"]:
            choices = [choice for event in events(received) for choice in event["choices"]]
            return "".join(choice["delta"].get("content", "") for choice in choices)
        return msgspec.json.decode(received.body)["choices"][0]["message"]["content"] or ""

    def calls_of(self, received):
        if "event-stream" in received.headers["content-type"]:
            choices = [choice for event in events(received) for choice in event["choices"]]
            deltas = [d for choice in choices for d in choice["delta"].get("tool_calls", ())]
            functions = [delta["function"] for delta in deltas]
            name = "".join(function.get("name", "") for function in functions)
            return [called(name, *(function["arguments"] for function in functions))]
        message = msgspec.json.decode(received.body)["choices"][0]["message"]
        return [called(*call["function"].values()) for call in message["tool_calls"]]


class TestCompletionsApi(ApiContract):
    path = "/v1/completions"

    def make(self):
        return APIS["openai-completions"]

    def requests(self):
        body = {"model": MODEL, "prompt": "hello"}
        return [Sent(self.path, body), Sent(f"{self.path}/render", body)]

    def chat(self, text, *, stream, image_url=""):
        return Sent(self.path, {"model": MODEL, "prompt": text, "stream": stream})

    def answer_of(self, received):
        streams = "event-stream" in received.headers["content-type"]
        bodies = events(received) if streams else [msgspec.json.decode(received.body)]
        return "".join(choice["text"] for body in bodies for choice in body["choices"])


class TestMessagesApi(ApiContract):
    path = "/v1/messages"

    def make(self):
        return APIS["anthropic-messages"]

    def requests(self):
        body = HELLO | {"max_tokens": 9}
        count = Sent(f"{self.path}/count_tokens", HELLO)
        return [Sent(self.path, body), Sent(f"{self.path}/render", body), count]

    def chat(self, text, *, stream, image_url=""):
        content = [{"type": "text", "text": text}]
        if image_url:
            data = image_url.partition(",")[2]
            source = {"type": "base64", "media_type": "image/png", "data": data}
            content.insert(0, {"type": "image", "source": source})
        messages = [{"role": "user", "content": content}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 9, "stream": stream}
        return Sent(self.path, body)

    def answer_of(self, received):
        if "event-stream" in received.headers["content-type"]:
            deltas = [event.get("delta", {}) for event in events(received)]
            return "".join(delta.get("text", "") for delta in deltas)
        blocks = msgspec.json.decode(received.body)["content"]
        return "".join(block.get("text", "") for block in blocks)

    def calls_of(self, received):
        if "event-stream" not in received.headers["content-type"]:
            blocks = msgspec.json.decode(received.body)["content"]
            return [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        found = events(received)
        starts = [event for event in found if event["type"] == "content_block_start"]
        deltas = [event for event in found if event["type"] == "content_block_delta"]
        return [
            called(
                start["content_block"]["name"],
                *(d["delta"]["partial_json"] for d in deltas if d["index"] == start["index"]),
            )
            for start in starts
            if start["content_block"]["type"] == "tool_use"
        ]


class TestResponsesApi(ApiContract):
    path = "/v1/responses"

    def make(self):
        return APIS["openai-responses"]

    def requests(self):
        paths = (self.path, f"{self.path}/render", f"{self.path}/input_tokens")
        return [Sent(path, {"model": MODEL, "input": "hello"}) for path in paths]

    def chat(self, text, *, stream, image_url=""):
        image = [{"type": "input_image", "image_url": image_url}] if image_url else []
        content = [*image, {"type": "input_text", "text": text}]
        items = [{"role": "user", "content": content}]
        return Sent(self.path, {"model": MODEL, "input": items, "stream": stream})

    def answer_of(self, received):
        if "event-stream" in received.headers["content-type"]:
            wanted = "response.output_text.delta"
            return "".join(each["delta"] for each in events(received) if each["type"] == wanted)
        items = msgspec.json.decode(received.body)["output"]
        said = [part for item in items if item["type"] == "message" for part in item["content"]]
        return "".join(part["text"] for part in said)

    def calls_of(self, received):
        if "event-stream" not in received.headers["content-type"]:
            items = msgspec.json.decode(received.body)["output"]
            calls = [item for item in items if item["type"] == "function_call"]
            return [called(call["name"], call["arguments"]) for call in calls]
        found = events(received)
        items = [each["item"] for each in found if each["type"] == "response.output_item.added"]
        kind = "response.function_call_arguments.delta"
        deltas = [each for each in found if each["type"] == kind]
        return [
            called(item["name"], *(d["delta"] for d in deltas if d["item_id"] == item["id"]))
            for item in items
            if item["type"] == "function_call"
        ]


class Copy(ChatApi):
    """The chat API a second time."""


def test_two_apis_with_one_route_are_an_error_that_names_both():
    names = ComponentNames({"api.openai-chat": "api 'openai-chat' of vlmkit-server"})
    with pytest.raises(PluginError) as caught:
        create_app({}, apis={**APIS, "copy": Copy()}, component_names=names)
    assert "api 'openai-chat' of vlmkit-server and api 'copy' both have the route" in str(
        caught.value
    )
    assert "POST /v1/chat/completions" in str(caught.value)
    assert "apis.use" in caught.value.hint


class Changed(ChatApi):
    """The chat API with a change to its first route."""

    def __init__(self, **changes):
        self.changes = changes

    def routes(self, host, /):
        first, *others = super().routes(host)
        return [replace(first, **self.changes), *others]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"scope": ""}, "without a scope"),
        ({"scope": None}, "without a scope"),
        ({"scope": "anything"}, "with the unknown scope 'anything'"),
        ({"path": "v1/chat"}, "does not start with a slash"),
        ({"method": "PUT"}, "with the method 'PUT'"),
        ({"reader": dict}, "whose reader is no BodyReader"),
        ({"handler": None}, "whose handler is no function"),
    ],
)
def test_an_invalid_route_is_refused_by_name(change, problem):
    with pytest.raises(PluginError, match=f"^api 'open' has the route .*{problem}") as caught:
        create_app({}, apis={"open": Changed(**change)})
    assert caught.value.hint


@pytest.mark.parametrize(
    ("routes", "problem"),
    [
        (lambda: [Route(path="/x", handler=None, answer=dict)], "raised TypeError"),
        (lambda: None, "did not return a list of routes"),
        (lambda: [("/x", "chat")], "returned a tuple, which is no route"),
    ],
)
def test_an_api_whose_routes_fail_is_named(routes, problem):
    class Failing(ChatApi):
        def routes(self, _host, /):
            return routes()

    names = ComponentNames({"api.failing": "api 'failing' of vlmkit-failing"})
    wanted = rf"routes\(\) of api 'failing' of vlmkit-failing {problem}"
    with pytest.raises(PluginError, match=wanted):
        create_app({}, apis={"failing": Failing()}, component_names=names)


def test_serve_check_reports_an_api_that_cannot_be_served(tmp_path):
    (tmp_path / "twice.py").write_text(
        "from vlmkit_server.apis.openai_chat.route import ChatApi\n"
        "import vlmkit\n"
        "VLMKIT_API = (1, 0)\n"
        "@vlmkit.hookimpl\n"
        "def vlmkit_register_apis(registry):\n"
        "    registry.add('twice', lambda context: ChatApi())\n"
    )
    files = f'plugins.files=["{tmp_path / "twice.py"}"]'
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "serve", "mock", "--check", "--set", files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "both have the route POST /v1/chat/completions" in done.stderr


class LastEventFails(AnswerEvents):
    """Events of the chat API whose end cannot be encoded."""

    def closing(self, usage):
        raise ValueError("no end")


def test_an_error_at_the_end_of_a_stream_is_its_last_event(monkeypatch):
    monkeypatch.setattr("vlmkit_server.apis.openai_chat.route.AnswerEvents", LastEventFails)
    server = ApiServer(ChatApi(), ScriptedRunner())
    (received,) = server.send(Sent("/v1/chat/completions", HELLO | {"stream": True}))
    assert received.status == 200
    assert b"internal_error" in received.pieces[-1]
    assert b"no end" not in received.body


class Raising(ChatApi):
    """An API whose handler, or an event of whose stream, raises a foreign error."""

    def routes(self, host, /):
        async def fail(exchange, body):
            """Raise an error with a client's text."""
            raise KeyError(body.messages[0].content)

        class Files(Controller):
            path = "/raising"

            @get(operation=Operation(dict, access="open"))
            async def read(self) -> dict[str, str]:
                """Raise an error."""
                raise KeyError

        route = super().routes(host)[0]
        return [route, replace(route, path="/fails", handler=fail), Files]


@pytest.mark.parametrize(
    "sent",
    [
        Sent("/fails", HELLO),
        Sent("/v1/chat/completions", HELLO | {"stream": True}),
        Sent("/raising", method="GET"),
    ],
)
def test_the_log_names_the_api_whose_code_raised(monkeypatch, caplog, sent):
    monkeypatch.setattr("vlmkit_server.apis.openai_chat.route.AnswerEvents", LastEventFails)
    (received,) = ApiServer(Raising(), ScriptedRunner()).send(sent)
    assert b"internal_error" in received.body
    assert " of api 'tested' failed: " in caplog.text
    assert "hello" not in caplog.text


def test_the_log_of_an_error_of_the_server_itself_names_no_api(caplog, monkeypatch):
    def fail(*_):
        raise KeyError

    monkeypatch.setattr("vlmkit_server.operate.models.model_body", fail)
    (received,) = ApiServer(ChatApi(), ScriptedRunner()).send(Sent("/v1/models", method="GET"))
    assert received.status == 500
    assert "failed: KeyError" in caplog.text
    assert " of api" not in caplog.text


class Paged(ChatApi):
    """An API with a page at the root."""

    def routes(self, _host, /):
        async def show(exchange, _):
            """Show a page."""
            return ASGIResponse(body=b"<!doctype html>", media_type="text/html")

        page = Route(path="/", scope="open", handler=show, answer=bytes, method="GET")
        return [replace(page, media_type="text/html")]


def test_a_page_of_an_api_replaces_the_start_page_and_has_its_media_type_in_the_document():
    with running(apis={**APIS, "paged": Paged()}) as server:
        answer = server.get("/", headers={"accept": "text/html"})
        assert answer.text == "<!doctype html>"
        described = server.get("/openapi.json").json()["paths"]["/"]["get"]["responses"]["200"]
        assert [*described["content"]] == ["text/html"]
    with running() as server:
        assert "vlmkit" in server.get("/", headers={"accept": "text/html"}).text


class Bodiless(ChatApi):
    """An API of routes without bodies, of which one holds a model until it is released."""

    def __init__(self):
        self.released = threading.Event()
        self.num_started = self.num_cancelled = 0

    def routes(self, _host, /):
        async def hold(exchange, _):
            """Lease the model and wait."""
            await exchange.lease(None)
            self.num_started += 1
            try:
                await asyncio.to_thread(self.released.wait)
            except asyncio.CancelledError:
                self.num_cancelled += 1
                raise
            return exchange.json({})

        async def names(exchange, _):
            """List the models."""
            return exchange.json([each.names for each in exchange.models])

        return [
            Route(path=f"/{each.__name__}", scope="open", handler=each, answer=dict, method="GET")
            for each in (hold, names)
        ]


def test_a_request_without_a_body_that_uses_a_model_counts_as_a_request():
    api = Bodiless()
    with running(apis={**APIS, "bodiless": api}, max_requests=1) as server:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(server.get, "/hold")
            assert eventually(lambda: api.num_started == 1)
            refused = server.get("/hold")
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                429,
                "server_overloaded",
            )
            assert refused.headers["retry-after"]
            assert server.post(HELLO | {"model": "mock"}).status_code == 429
            assert server.get("/names").status_code == 200, "it needs no model"
            api.released.set()
            assert first.result().status_code == 200
        assert server.post(HELLO | {"model": "mock"}).status_code == 200


def test_a_client_that_disconnects_ends_a_request_without_a_body():
    api = Bodiless()
    with running(apis={**APIS, "bodiless": api}) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"GET /hold HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert eventually(lambda: api.num_started == 1)
        assert eventually(lambda: api.num_cancelled == 1)
        assert eventually(server.is_idle)
        api.released.set()


class Blocking(ChatApi):
    """An API whose handler blocks the event loop until it is released."""

    def __init__(self):
        self.released = threading.Event()

    def routes(self, host, /):
        async def block(exchange, _):
            """Block."""
            self.released.wait(60)
            return exchange.json({})

        return [Route(path="/block", scope="open", handler=block, answer=dict, method="GET")]


def test_the_log_names_the_api_that_blocks_the_event_loop(caplog):
    api = Blocking()
    names = ComponentNames({"api.blocking": "api 'blocking' of vlmkit-blocking"})
    with (
        running(apis={**APIS, "blocking": api}, component_names=names) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(server.get, "/block")
        assert eventually(lambda: "event loop is blocked" in caplog.text)
        api.released.set()
        assert answer.result().status_code == 200
    (record,) = [r for r in caplog.records if "event loop is blocked" in r.getMessage()]
    assert "s by api 'blocking' of vlmkit-blocking; stack:" in record.getMessage()
    assert " block\n" in record.getMessage()


def test_a_route_cannot_be_made_without_a_scope():
    with pytest.raises(TypeError, match="scope"):
        Route(path="/x", handler=None, answer=dict)


class Unscoped(Controller):
    """A controller of the framework that states no operation."""

    path = "/unscoped"

    @get()
    async def read(self) -> bytes:
        """Return nothing."""
        return b""


class Stores(ChatApi):
    """An API with that controller."""

    def routes(self, _host, /):
        return [Unscoped]


def test_a_controller_without_a_scope_is_refused_by_name():
    with pytest.raises(PluginError, match="api 'stores' has the route /unscoped without a scope"):
        create_app({}, apis={"stores": Stores()})


def test_apis_use_selects_the_routes_of_a_server():
    layers = read_layers(environ={}, arguments={"apis": {"use": ["anthropic-messages"]}})
    plugins = load_plugins(layers.plugins())
    config = layers.read(plugins.tables).config
    found = apis(config, plugins)
    assert list(found) == ["anthropic-messages"]
    paths = {route.path for route in create_app({}, apis=found).routes}
    assert "/v1/messages" in paths
    assert "/v1/chat/completions" not in paths


@pytest.mark.parametrize(
    ("path", "error_keys"),
    [
        ("/v1/messages", {"type", "error", "request_id"}),  # has no GET
        ("/v1/messages/count_tokens", {"type", "error", "request_id"}),
        ("/v1/messages/nowhere", {"error"}),  # batches have such paths, too
        ("/v1/nowhere", {"error"}),
        ("/nowhere", {"error"}),
        ("/x" * 2000, {"error"}),
    ],
)
def test_an_error_without_a_route_has_the_shape_of_the_only_api_with_such_paths(
    server, path, error_keys
):
    answer = server.get(path)
    assert answer.status_code in (404, 405)
    assert set(answer.json()) == error_keys
    assert answer.json()["error"]["message"] in ("not found", "method not allowed")


def test_a_server_has_every_api_by_default():
    layers = read_layers(environ={})
    plugins = load_plugins(layers.plugins())
    assert apis(layers.read(plugins.tables).config, plugins).keys() >= APIS.keys()


def test_capabilities_and_openapi_list_the_routes_of_an_api():
    class Renamed(ChatApi):
        def routes(self, host, /):
            return [replace(each, path=f"/renamed{each.path}") for each in super().routes(host)]

    server = ApiServer(Renamed(), ScriptedRunner())
    capabilities, document = server.send(
        Sent("/v1/capabilities", method="GET"), Sent("/openapi.json", method="GET")
    )
    (model,) = msgspec.json.decode(capabilities.body)["models"]
    assert "messages" in model["endpoints"]["/renamed/v1/chat/completions"]["parameters"]
    assert "/renamed/v1/chat/completions" in msgspec.json.decode(document.body)["paths"]


def test_a_route_without_a_body_returns_the_model_that_it_leased():
    exchanges = []

    async def name(exchange, _):
        """Return the name of the model."""
        exchanges.append(exchange)  # so that no garbage collection ends its lease
        return exchange.json((await exchange.lease(None)).facts.name)

    class Named(ChatApi):
        def routes(self, _host, /):
            return [Route(path="/name", scope="key", handler=name, answer=str, method="GET")]

    server = ApiServer(Named(), ScriptedRunner())

    async def num_users():
        async with server.app.lifespan():
            received = await server._response(Sent("/name", method="GET"), None)
            assert msgspec.json.decode(received.body) == MODEL
            return exchanges[0].service.models[MODEL].num_users

    assert asyncio.run(num_users()) == 0
