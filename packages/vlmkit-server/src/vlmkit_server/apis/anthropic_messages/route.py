"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API.

A body is translated into one of the chat API; what comes of that is told in Anthropic's words.
"""

from typing import Any

import msgspec
from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import AnswerStream
from vlmkit_server.apis.anthropic_messages.answer import MessageBody, message_body
from vlmkit_server.apis.anthropic_messages.events import MessageEvents
from vlmkit_server.apis.anthropic_messages.to_chat import Translation, as_chat
from vlmkit_server.apis.anthropic_messages.wire import (
    COUNT,
    MESSAGES,
    CountedTokens,
    CountRequest,
    MessagesRequest,
)
from vlmkit_server.apis.openai_chat.call import MessagesCall, answer_head
from vlmkit_server.apis.openai_chat.convert import Converter, field_of_chat
from vlmkit_server.apis.openai_chat.tool_loop import ToolLoop, begun, check_alone
from vlmkit_server.exchange.full_response import WholeAnswer
from vlmkit_server.exchange.named_errors import media_names, naming_media
from vlmkit_server.exchange.service import Service
from vlmkit_server.exchange.streaming import EventStream
from vlmkit_server.http.errors import error_handlers
from vlmkit_server.http.message_errors import MessageErrorBody, message_error
from vlmkit_server.http.operation import Operation

OWN_EFFORT = "output_config.effort"


class MessagesController(Controller):
    """The messages API."""

    path = "/v1/messages"
    exception_handlers = error_handlers(message_error)

    @post(
        status_code=200,
        operation=Operation(
            MessageBody,
            MessagesRequest,
            "message event",
            has_timing=True,
            error=MessageErrorBody,
        ),
    )
    async def create(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Answer a conversation."""
        return _MessageCall(request, service, MESSAGES, converter)

    @post(
        "/count_tokens",
        status_code=200,
        operation=Operation(CountedTokens, CountRequest, error=MessageErrorBody),
    )
    async def count(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Return how many tokens a conversation has."""
        return _CountCall(request, service, COUNT, converter)


class _MessageCall(MessagesCall[MessagesRequest]):
    """Answers one conversation."""

    async def start(self, body: MessagesRequest) -> ASGIApp:
        """Submit the request; its answer is streamed or waited for."""
        runner = await self.runner(body.model)
        head = answer_head("msg", self.model, runner)
        said = as_chat(body)
        try:
            request, images_s = await self.asked(
                said.chat, runner.facts, head.id, effort=OWN_EFFORT
            )
            self.note_tools(said.chat, runner.facts)
            check_alone(said.chat, request)
            stream: AnswerStream | ToolLoop
            if body.server_tools:
                stream = await begun(said.chat, request, runner, self.service, shows_calls=True)
            else:
                stream = await runner.asubmit(request)
        except RequestError as error:
            error.param = field_of_messages(error, said)
            raise
        names = media_names(request, lambda error: field_of_messages(error, said))
        answer = naming_media(stream, names)
        told = {
            "has_transforms": bool(body.return_image_transforms),
            "has_places": bool(body.return_places),
        }
        if body.stream:
            events = MessageEvents(
                head, len(stream.prompt_token_ids), serves=bool(body.server_tools), **told
            )
            return EventStream(answer, events, self.service, self.headers, images_s)
        return WholeAnswer(
            answer,
            lambda completion: [
                message_body(
                    head, completion, stream.rounds if isinstance(stream, ToolLoop) else (), **told
                )
            ],
            self.service,
            self.headers,
            images_s,
        )


class _CountCall(MessagesCall[CountRequest]):
    """Counts one conversation."""

    async def start(self, body: CountRequest) -> ASGIApp:
        """Let the runner read the prompt that the messages would be."""
        runner = await self.runner(body.model)
        said = as_chat(body)
        try:
            request, _ = await self.asked(said.chat, runner.facts, "", effort=OWN_EFFORT)
            found = await runner.atokenize(request)
        except RequestError as error:
            error.param = field_of_messages(error, said)
            raise
        content = msgspec.json.encode(CountedTokens(len(found.token_ids)))
        return ASGIResponse(body=content, headers=self.headers)


def field_of_messages(error: RequestError, said: Translation) -> str | None:
    """Return which field of what was sent an error is about."""
    field = field_of_chat(error, said.chat)
    return said.places.get(field, field) if field else None
