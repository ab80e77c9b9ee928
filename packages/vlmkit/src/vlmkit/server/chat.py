"""``POST /v1/chat/completions``: from a body to an answer, whole or streamed."""

import asyncio
import secrets
import time
from typing import Any

from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send

from vlmkit.completion import Timings
from vlmkit.errors import RequestError
from vlmkit.pipeline import Pipeline
from vlmkit.server.answer import AnswerHead, completion_body, logprobs_of
from vlmkit.server.convert import Converter
from vlmkit.server.errors import BodyTooSlow, Unavailable, WrongMediaType
from vlmkit.server.ignored import HEADER, counter_names, header_value
from vlmkit.server.models import fingerprint
from vlmkit.server.service import Service
from vlmkit.server.sse import AnswerEvents
from vlmkit.server.streaming import EventStream
from vlmkit.server.wire import ChatRequest, chat_request
from vlmkit.stream import Stream


class ChatController(Controller):
    """The chat API."""

    path = "/v1/chat/completions"

    @post(status_code=200)
    async def create(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Answer a conversation."""
        return _ChatCall(request, service, converter)


class _ChatCall:
    """One call, as the ASGI application that makes its response.

    All of it runs here and not in the handler, so that one scope holds the request's place in the
    server until the last byte is sent.
    """

    def __init__(
        self, request: Request[Any, Any, Any], service: Service, converter: Converter
    ) -> None:
        self._request = request
        self._service = service
        self._converter = converter
        self._images_s = 0.0
        self._headers: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, start the request, and answer; an error until then has its own status."""
        with self._service.admitted():
            with self._service.reserved(self._announced_bytes()):
                chat, ignored = chat_request(await self._body())
                self._note(ignored)
                pipeline = self._service.pipeline(chat.model)
                head = AnswerHead(
                    f"chatcmpl-{secrets.token_hex(12)}",
                    int(time.time()),
                    chat.model,
                    fingerprint(pipeline),
                )
                stream = await self._service.attend(self._start(chat, pipeline, head), receive)
            respond = self._events if chat.stream else self._whole
            await respond(chat, pipeline, head, stream)(scope, receive, send)

    def _note(self, ignored: frozenset[str]) -> None:
        """Tell the client and the operator which keys of the body are ignored."""
        if ignored:
            self._headers[HEADER] = header_value(ignored)
            self._service.num_ignored.update(counter_names(ignored))

    async def _start(self, chat: ChatRequest, pipeline: Pipeline, head: AnswerHead) -> Stream:
        try:
            request, self._images_s = await self._converter.request(chat, pipeline, head.id)
            return await pipeline.asubmit(request)
        except RequestError as error:
            if error.param == "max_tokens" and chat.max_tokens is None:
                error.param = "max_completion_tokens"
            raise

    def _events(
        self, chat: ChatRequest, pipeline: Pipeline, head: AnswerHead, stream: Stream
    ) -> ASGIApp:
        """Return the response that streams."""
        options = chat.stream_options
        events = AnswerEvents(
            head,
            stream.num_choices,
            has_usage=bool(options and options.include_usage),
            logprobs=logprobs_of(pipeline.tokenizer) if chat.logprobs else None,
        )
        return EventStream(stream, events, self._service, self._headers)

    def _whole(
        self, chat: ChatRequest, pipeline: Pipeline, head: AnswerHead, stream: Stream
    ) -> ASGIApp:
        """Return the response that waits for the end."""

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            completion = await self._service.attend(stream.aresult(), receive)
            if any(choice.finish_reason == "abort" for choice in completion.choices):
                raise Unavailable("the answer was cut off", code="aborted")
            logprobs = logprobs_of(pipeline.tokenizer) if chat.logprobs else None
            timing = _server_timing(self._images_s, completion.timings)
            # In a thread: a long answer with likeliest tokens takes seconds, and others are served.
            body = await asyncio.to_thread(completion_body, head, completion, logprobs)
            response = ASGIResponse(
                body=body,
                headers={"server-timing": timing, **self._headers},
            )
            await response(scope, receive, send)

        return respond

    def _announced_bytes(self) -> int:
        """Return how large the body may be: what its header says, or else all that is allowed."""
        most = self._service.settings.max_body_bytes
        announced = self._request.headers.get("content-length", "")
        return min(int(announced), most) if announced.isdecimal() else most

    async def _body(self) -> bytes:
        """Read the body; a page in a browser cannot announce JSON without asking first."""
        if self._request.content_type[0] != "application/json":
            raise WrongMediaType("the body must be announced as application/json")
        try:
            async with asyncio.timeout(self._service.settings.body_timeout_s):
                return await self._request.body()
        except TimeoutError:
            raise BodyTooSlow("the body did not arrive in time") from None


def _server_timing(images_s: float, timings: Timings) -> str:
    """Return where the time went as a ``Server-Timing`` header, in milliseconds."""
    spans = {
        "images": images_s,
        "prompt": timings.prompt_s,
        "queue": timings.queue_s,
        "first_token": timings.first_token_s,
        "decode": timings.decode_s,
    }
    return ", ".join(f"{name};dur={span * 1e3:.1f}" for name, span in spans.items())
