"""What every API must do."""

import base64
import io
import logging
from collections.abc import Iterator, Sequence as Seq
from itertools import islice, permutations
from typing import Any

import msgspec
import PIL.Image
import pytest
from litestar.routes import HTTPRoute

from vlmkit.errors import EngineError, RequestError
from vlmkit.settings.scope import SCOPES
from vlmkit.types.completion import FinishReason
from vlmkit.types.delta import Delta, ReasoningDelta, TextDelta, ToolCallDelta, text_of
from vlmkit.types.message import ImagePart, parts_of
from vlmkit_server.http.errors import Fault
from vlmkit_server.http.operation import Operation
from vlmkit_server.interfaces.api import Api
from vlmkit_testing.contracts.api_bodies import Keys, among_others, difference, keys_of
from vlmkit_testing.contracts.api_marked_bodies import marked_bodies
from vlmkit_testing.contracts.api_subject import (
    CALLED,
    MODEL,
    WORDS,
    ApiServer,
    Received,
    Script,
    ScriptedRunner,
    Sent,
)

PRIVATE = "kx7private"
ABSENT = "no-such-model"
MAX_COUNT = 1000  # larger integers may be times, such as nanoseconds
ANSWER = "".join(WORDS)
PARTS: tuple[tuple[Delta, ...], ...] = (
    (ReasoningDelta("why"), ReasoningDelta(" not")),
    (TextDelta("so "), TextDelta("it is")),
    (ToolCallDelta(0, "call-1", CALLED, ""), ToolCallDelta(0, "", "", '{"a": 1}')),
    (TextDelta("it "), TextDelta("was")),
)
"""Parts of an answer, each in two deltas."""

ORDERS = [each for each in permutations(PARTS) if each.index(PARTS[1]) < each.index(PARTS[3])]
ODD_WORDS = (
    '"quoted" \\n',
    "żółć 日本 👍",
    "\u2028\x7f",
    "\r\n\t",
    "<b>&amp;",
    "\n\ndata: x\n\n",
    "{}",
)
ENDS = {"text/event-stream": b"\n\n", "application/x-ndjson": b"\n"}
"""How the last event of a stream ends, by media type: a client waits for it."""


class ApiContract:
    """Inherit it, override :meth:`make`, :meth:`requests` and what the API has, and run pytest.

    Attributes:
        model_field: the field of a body that names the model.
    """

    model_field = "model"

    def make(self) -> Api:
        """Return the API."""
        raise NotImplementedError

    def requests(self) -> Seq[Sent]:
        """Return at least one request for each route, which succeeds; the model is ``scripted``."""
        raise NotImplementedError

    def chat(self, text: str, *, stream: bool, image_url: str = "") -> Sent | None:
        """Return a request that asks the model; None if no route does.

        Args:
            text: the newest message of the user.
            stream: whether the answer is streamed.
            image_url: a ``data:`` URL of a PNG file that the message shows; empty for none.
        """
        raise NotImplementedError

    def answer_of(self, received: Received) -> str:
        """Return the text of the model in a whole response or a stream, without reasoning."""
        raise NotImplementedError

    def calls_of(self, received: Received) -> Seq[tuple[str, Any]] | None:  # noqa: ARG002
        """Return the calls of the model in a whole response or a stream; None if it shows none.

        Each has the name of its tool, and its arguments as JSON values. The default is None.
        """
        return None

    # Routes

    def test_every_route_is_described_and_has_a_scope(self) -> None:
        """OpenAPI, keys and metrics are derived from that."""
        routes = self._own_routes(ApiServer(self.make(), ScriptedRunner()))
        assert routes
        for path, handler in routes:
            operation = handler.opt.get("operation")
            assert isinstance(operation, Operation), f"{path} has no operation"
            assert operation.access in ("open", "key", *SCOPES), f"{path} has no scope"
            assert path.startswith("/")
            if path == "/" and "GET" in handler.http_methods:
                assert operation.access == "open", "the start page needs a key"
            assert (handler.fn.__doc__ or "").strip(), f"the handler of {path} has no docstring"

    def test_each_route_answers_its_request(self) -> None:
        """The requests of the contract cover every route."""
        api, seen = self.make(), set[str]()
        if not self.requests():
            pytest.skip("no request of this API is known")
        for sent in self.requests():
            server = ApiServer(api, ScriptedRunner())
            (received,) = server.send(sent)
            assert received.status == 200, received.body
            seen.add(sent.path.partition("?")[0])
        paths = {path for path, _ in self._own_routes(ApiServer(api, ScriptedRunner()))}
        assert {path for path in paths if "{" not in path} <= seen

    def test_each_response_has_the_type_of_its_route(self) -> None:
        """OpenAPI describes it by that type."""
        server = ApiServer(self.make(), ScriptedRunner())
        operations = {
            (path, method): handler.opt["operation"].of(method)
            for path, handler in self._own_routes(server)
            for method in handler.http_methods
        }
        for sent in self.requests():
            operation = operations.get((sent.path.partition("?")[0], sent.method))
            if operation is None:
                continue
            (received,) = ApiServer(self.make(), ScriptedRunner()).send(sent)
            expected = operation.answer
            if expected is not bytes and "json" in received.headers["content-type"]:
                for line in received.body.splitlines() if _is_stream(received) else [received.body]:
                    msgspec.json.decode(line, type=expected)

    def test_one_api_can_have_two_servers(self) -> None:
        """State belongs to the routes of one server."""
        api = self.make()
        first, second = (
            [path for path, _ in self._own_routes(ApiServer(api, ScriptedRunner()))]
            for _ in range(2)
        )
        assert first == second

    def test_it_encodes_any_error_of_the_server(self) -> None:
        """An error may have neither field nor code; its text may have any characters."""
        api = self.make()
        scope: Any = {"state": {"request_id": "req-1"}, "headers": [], "path": "/"}
        for status in (400, 401, 403, 404, 413, 429, 499, 500, 503):
            for param in (None, "messages[0].content"):
                for code, text in ((None, "it is wrong"), ("a_code", 'it is "wrong"\n\\ żółć')):
                    fault = Fault(text, "invalid_request_error", param, code)
                    body = api.write_error(fault, status, scope)
                    msgspec.json.decode(body, type=api.error_type)
                    assert text in _texts_of(msgspec.json.decode(body))

    # Answers

    def test_a_whole_answer_has_the_models_text(self) -> None:
        """Not more, and not less."""
        (received,) = self._responses(ScriptedRunner(), stream=False)
        assert received.status == 200, received.body
        assert self.answer_of(received) == f"hello {ANSWER}"

    def test_a_stream_has_the_models_text_piece_by_piece(self) -> None:
        """The same text as the whole answer, in several pieces."""
        (received,) = self._responses(ScriptedRunner(), stream=True)
        assert received.status == 200, received.body
        assert self.answer_of(received) == f"hello {ANSWER}"
        assert len(received.pieces) >= len(WORDS)

    @pytest.mark.parametrize("stream", [False, True])
    def test_any_text_stays_as_it_is(self, stream: bool) -> None:
        """Of the user and of the model, whatever the format of a response means by it."""
        runner = ScriptedRunner(script=Script(words=ODD_WORDS))
        sent = self._chat(f" {''.join(ODD_WORDS)} \n", stream=stream)
        (received,) = ApiServer(self.make(), runner).send(sent)
        assert received.status == 200, received.body
        assert self.answer_of(received) == f" {''.join(ODD_WORDS)} \n {''.join(ODD_WORDS)}"

    @pytest.mark.parametrize(("num_deltas", "num_chunks"), [(1, 3), (2, 1), (3, 2), (99, 1)])
    def test_a_text_may_come_in_any_pieces(self, num_deltas: int, num_chunks: int) -> None:
        """Several in a chunk, and several chunks at once: a slow client gets what has gathered."""
        script = Script(num_deltas=num_deltas, num_chunks=num_chunks)
        (received,) = self._responses(ScriptedRunner(script=script), stream=True)
        assert self.answer_of(received) == f"hello {ANSWER}"

    def test_an_answer_may_have_no_text(self) -> None:
        """It ends like any other."""
        for stream in (False, True):
            runner = ScriptedRunner(script=Script(words=None))
            (received,) = self._responses(runner, stream=stream)
            assert received.status == 200, received.body
            assert not stream or self.answer_of(received) == ""
            assert b"the server failed" not in received.body

    @pytest.mark.parametrize("stream", [False, True])
    def test_reasoning_is_no_part_of_the_text(self, stream: bool) -> None:
        """A response has it elsewhere, or not at all."""
        runner = ScriptedRunner(script=Script(thought="why |not"))
        (received,) = self._responses(runner, stream=stream)
        assert received.status == 200, received.body
        assert self.answer_of(received) == f"hello {ANSWER}"

    def test_a_stream_has_the_media_type_of_its_route(self) -> None:
        """OpenAPI describes the stream by it, and clients read the stream by it."""
        server, sent = ApiServer(self.make(), ScriptedRunner()), self._chat("hello", stream=True)
        (received,) = server.send(sent)
        described = [
            handler.opt["operation"].stream_type
            for path, handler in self._own_routes(server)
            if path == sent.path
        ]
        sent_type, described_type = (
            each.partition(";")[0] for each in (received.headers["content-type"], described[0])
        )
        assert sent_type == described_type

    def test_concurrent_requests_get_their_own_answers(self) -> None:
        """No state is shared between two requests."""
        runner = ScriptedRunner()
        texts = [f"text{number}" for number in range(6)]
        sent = [self.chat(text, stream=n % 2 == 0) for n, text in enumerate(texts)]
        wanted = [each for each in sent if each is not None]
        if not wanted:
            pytest.skip("no route asks the model")
        received = ApiServer(self.make(), runner).send(*wanted)
        assert [self.answer_of(each) for each in received] == [f"{t} {ANSWER}" for t in texts]

    @pytest.mark.parametrize("stream", [False, True])
    def test_equal_requests_have_equal_responses(self, stream: bool) -> None:
        """But for ids and times: what counts events or tokens starts anew with each request."""
        api = self.make()
        first, second = (
            self._responses(ScriptedRunner(), stream=stream, api=api)[0] for _ in range(2)
        )
        assert _counts_of(first.body) == _counts_of(second.body)

    @pytest.mark.parametrize("stream", [False, True])
    def test_an_answer_shows_no_call_of_an_earlier_one(self, stream: bool) -> None:
        """Calls are often collected up to the end of an answer: each has its own."""
        api = self.make()
        (first,) = self._responses(
            ScriptedRunner(script=Script(calls=True)), stream=stream, api=api
        )
        (second,) = self._responses(ScriptedRunner(), stream=stream, api=api)
        assert first.status == second.status == 200
        assert CALLED.encode() not in second.body
        assert self.answer_of(first) == f"hello {ANSWER}"
        assert self.answer_of(second) == f"hello {ANSWER}"

    @pytest.mark.parametrize("finish_reason", ["stop", "length"])
    def test_a_stream_has_the_text_and_the_calls_of_the_whole_answer(
        self, finish_reason: FinishReason
    ) -> None:
        """Reasoning, text and a call may come in any order, and a limit may end the answer."""
        runner = ScriptedRunner()
        server = ApiServer(self.make(), runner)
        sent = [self._chat("hello", stream=stream) for stream in (False, True)]
        for parts in ORDERS:
            deltas = [delta for part in parts for delta in part]
            runner.script = Script(words=None, deltas=deltas, finish_reason=finish_reason)
            for received in server.send(*sent):
                assert received.status == 200, received.body
                assert self.answer_of(received) == text_of(deltas)
                assert self.calls_of(received) in (None, [(CALLED, {"a": 1})])

    def test_an_image_reaches_the_model(self) -> None:
        """Opened, and before the text or after it."""
        sent = self.chat("look", stream=False, image_url=_png_url())
        if sent is None or sent == self.chat("look", stream=False):
            pytest.skip("no route shows images")
        runner = ScriptedRunner()
        (received,) = ApiServer(self.make(), runner).send(sent)
        assert received.status == 200, received.body
        images = [p for p in parts_of(runner.requests[-1].messages) if isinstance(p, ImagePart)]
        assert [each.image.source_size for each in images] == [(8, 6)]

    # Errors

    def test_an_error_about_an_image_names_its_path_in_the_body(self) -> None:
        """Of several images, before others and after them, also in several messages.

        The path has the client's names and indexes, and leads to this image alone.
        """
        good = self.chat("look", stream=False, image_url=_png_url())
        if good is None or good == self.chat("look", stream=False):
            pytest.skip("no route shows images")
        api = _NotesErrors(self.make())
        server = ApiServer(api, ScriptedRunner())
        for kind in ("cut", "header"):
            sent = self.chat("look", stream=False, image_url=_png_url(kind))
            assert sent is not None
            places = among_others(sent.body, good.body, difference(sent.body, good.body))
            for body, unbroken, place in places if kind == "cut" else islice(places, 1):
                tried = (Sent(sent.path, each, sent.method) for each in (unbroken, body))
                taken, refused = server.send(*tried)
                if taken.status == 200:  # else this API takes no such conversation
                    assert refused.status == 400, refused.body
                    _check_path(api.params[-1], place)

    @pytest.mark.parametrize("kind", ["unknown model", "no JSON object", "wrong type"])
    def test_an_error_has_the_apis_own_shape(self, kind: str) -> None:
        """Whatever found it: the server, the reader or the handler."""
        api, sent = self.make(), self._chat("hello", stream=False)
        body: Any = {**(sent.body or {}), self.model_field: ABSENT}
        if kind == "no JSON object":
            body = [1]
        elif kind == "wrong type":
            body = {**(sent.body or {}), self.model_field: {"a": 1}}
        (received,) = ApiServer(api, ScriptedRunner()).send(Sent(sent.path, body, sent.method))
        assert received.status == (404 if kind == "unknown model" else 400), received.body
        msgspec.json.decode(received.body, type=api.error_type)

    def test_an_unknown_field_is_reported_or_refused(self) -> None:
        """A misspelt field must not vanish."""
        sent = self._chat("hello", stream=False).with_field("unheard_of", 1)
        (received,) = ApiServer(self.make(), ScriptedRunner()).send(sent)
        ignored = received.headers.get("x-vlmkit-ignored", "")
        assert "unheard_of" in ignored or (
            received.status == 400 and b"unheard_of" in received.body
        )

    def test_an_error_of_the_runner_is_a_response(self) -> None:
        """With its status, in the API's own shape, if nothing was sent before.

        It names fields as the client does.
        """
        for error, status in (
            (RequestError("the prompt is wrong", param="messages"), 400),
            (EngineError("the engine failed"), 500),
        ):
            api = self.make()
            for stream in (False, True):
                (received,) = self._responses(ScriptedRunner(error), stream=stream, api=api)
                assert received.status == status, received.body
                msgspec.json.decode(received.body, type=api.error_type)
                known = self._chat("hello", stream=stream).body or {}
                assert b"messages" not in received.body or "messages" in known

    def test_an_error_within_a_stream_ends_it(self) -> None:
        """The last piece is the error, so that a client knows that the answer is incomplete."""
        failing = ScriptedRunner(script=Script(late_error=EngineError("the engine failed")))
        (received,) = self._responses(failing, stream=True)
        (whole,) = self._responses(ScriptedRunner(), stream=True)
        assert received.status == 200
        assert b"failed" in received.pieces[-1]
        assert b"failed" not in whole.body
        for each in (received, whole):
            media_type = each.headers["content-type"].partition(";")[0]
            assert each.body.endswith(ENDS.get(media_type, b"")), "its last event is not whole"

    def test_no_error_and_no_log_line_repeats_a_clients_text(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A tenant's text must not reach another tenant or an operator."""
        caplog.set_level(logging.DEBUG)
        errors = (RequestError("it is wrong", param="messages"), EngineError("it failed"))
        for error in errors:
            (received,) = self._responses(ScriptedRunner(error), stream=False, text=PRIVATE)
            assert PRIVATE.encode() not in received.body
        sent = self._chat(PRIVATE, stream=False).with_field(self.model_field, PRIVATE)
        (received,) = ApiServer(self.make(), ScriptedRunner()).send(sent)
        assert PRIVATE.encode() not in received.body
        assert PRIVATE not in caplog.text

    def test_no_error_and_no_log_line_repeats_a_text_of_any_field(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """At any depth of a body, in a field of text or of another type, named or free."""
        caplog.set_level(logging.DEBUG)
        bodies = list(self._marked_bodies())
        if not bodies:
            pytest.skip("no request of this API has a body")
        for received in ApiServer(self.make(), ScriptedRunner()).send(*bodies):
            headers = " ".join(received.headers.values())
            assert PRIVATE not in headers, "a header repeats a client's text"
            assert received.status == 200 or PRIVATE.encode() not in received.body, (
                f"an error repeats a client's text: {received.body!r}"
            )
        assert PRIVATE not in caplog.text, "a log line repeats a client's text"

    # The end

    def test_a_client_that_disconnects_aborts_its_answer(self) -> None:
        """The engine must not compute an answer without a reader."""
        runner = ScriptedRunner(script=Script(holds=True))
        sent = self._chat("hello", stream=True)
        ApiServer(self.make(), runner).send(sent, gone_after=1)
        assert [stream.is_aborted for stream in runner.streams] == [True]

    def _responses(
        self,
        runner: ScriptedRunner,
        *,
        stream: bool,
        text: str = "hello",
        api: Api | None = None,
    ) -> list[Received]:
        return ApiServer(api or self.make(), runner).send(self._chat(text, stream=stream))

    def _chat(self, text: str, *, stream: bool) -> Sent:
        sent = self.chat(text, stream=stream)
        if sent is None:
            pytest.skip("no route asks the model")
        return sent

    def _marked_bodies(self) -> Iterator[Sent]:
        """Yield each request with a body, with marked values of each field of its type."""
        routes = self._own_routes(ApiServer(self.make(), ScriptedRunner()))
        shapes = {path: handler.opt["operation"].body for path, handler in routes}
        for sent in self.requests():
            shape = shapes.get(sent.path.partition("?")[0])
            if shape is not None and sent.body is not None:
                for body in marked_bodies(shape, sent.body, PRIVATE):
                    yield Sent(sent.path, body, sent.method)

    def _own_routes(self, server: ApiServer) -> list[tuple[str, Any]]:
        """Return the paths and handlers of the API under test."""
        without = ApiServer(_NoApi(), ScriptedRunner())
        common = {route.path for route in without.app.routes}
        return [
            (route.path_format, handler)
            for route in server.app.routes
            if isinstance(route, HTTPRoute) and route.path not in common
            for handler in route.route_handlers
            if handler.http_methods != {"OPTIONS"}
        ]


class _NoApi:
    """An API without routes."""

    error_type = msgspec.Struct

    def write_error(self, *_: Any) -> bytes:
        """Encode nothing."""
        return b""

    def routes(self, _host: Any) -> Seq[Any]:
        """Return no route."""
        return ()


class _NotesErrors:
    """An API, and the fields that its errors name.

    Args:
        api: the API under test.
    """

    def __init__(self, api: Api) -> None:
        self.params: list[str | None] = []
        self._api = api
        self.error_type = api.error_type

    def write_error(self, fault: Fault, status: int, scope: Any) -> bytes:
        """Encode an error, and note its field."""
        self.params.append(fault.param)
        return self._api.write_error(fault, status, scope)

    def routes(self, host: Any) -> Seq[Any]:
        """Return the routes of the API."""
        return self._api.routes(host)


def _check_path(param: str | None, place: Keys) -> None:
    """Fail unless an error names a value, or what contains it and no other element of an array."""
    assert param is not None, "an error about an image names no field"
    named = keys_of(param)
    assert named == place[: len(named)], f"{param!r} is no path to the broken image"
    last_index = max((n for n, key in enumerate(place) if isinstance(key, int)), default=0)
    assert len(named) > last_index, f"{param!r} has other images, too"


def _is_stream(received: Received) -> bool:
    return received.headers["content-type"].startswith("application/x-ndjson")


def _texts_of(value: Any) -> str:
    """Return all texts of a JSON value, one after the other."""
    if isinstance(value, dict | list):
        return "".join(map(_texts_of, value.values() if isinstance(value, dict) else value))
    return value if isinstance(value, str) else ""


def _counts_of(body: bytes) -> list[Any]:
    """Return the lines of a response, of its JSON values the structure and small integers alone."""
    found: list[Any] = []
    for line in body.splitlines():
        try:
            found.append(_without_texts(msgspec.json.decode(line.removeprefix(b"data:"))))
        except msgspec.DecodeError:
            found.append(line)
    return found


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_texts(each) for each in value]
    is_count = isinstance(value, int) and value <= MAX_COUNT
    return value if is_count or value is None else type(value).__name__


def _png_url(kind: str = "") -> str:
    """Return the ``data:`` URL of a PNG file of 8 by 6 pixels, which is broken if a kind is given.

    Args:
        kind: ``cut`` for half of the file, ``header`` for its first bytes before zeros.
    """
    file = io.BytesIO()
    PIL.Image.new("RGB", (8, 6)).save(file, "PNG")
    data = file.getvalue()
    data = {"cut": data[: len(data) // 2], "header": data[:8] + bytes(64)}.get(kind, data)
    return "data:image/png;base64," + base64.b64encode(data).decode()


__all__ = ["MODEL", "ApiContract", "Received", "Sent"]
