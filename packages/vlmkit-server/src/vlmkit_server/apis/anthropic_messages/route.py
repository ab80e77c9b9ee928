"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API.

A body is translated to the chat API, and the answer to Anthropic's objects.
"""

from typing import Any

import msgspec
from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from vlmkit.interfaces.runner import AnswerStream
from vlmkit_server.apis.anthropic_messages.answer import MessageBody, message_body
from vlmkit_server.apis.anthropic_messages.events import MessageEvents
from vlmkit_server.apis.anthropic_messages.to_chat import as_chat
from vlmkit_server.apis.anthropic_messages.wire import (
    COUNT,
    MESSAGES,
    CountedTokens,
    CountRequest,
    MessagesRequest,
)
from vlmkit_server.apis.openai_chat.call import MessagesCall, answer_head
from vlmkit_server.apis.openai_chat.convert import Converter
from vlmkit_server.apis.openai_chat.tool_loop import (
    ToolLoop,
    check_server_tool_conflicts,
    start_tool_loop,
)
from vlmkit_server.apis.openai_chat.translation import naming_fields
from vlmkit_server.exchange.full_response import WholeAnswer
from vlmkit_server.exchange.named_errors import media_names, naming_media
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.errors import error_handlers
from vlmkit_server.http.message_errors import MessageErrorBody, message_error
from vlmkit_server.http.operation import Operation

EFFORT_FIELD = "output_config.effort"


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
        return _CreateCall(request, service, MESSAGES, converter)

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


class _CreateCall(MessagesCall[MessagesRequest]):
    """Answers one conversation."""

    async def start(self, body: MessagesRequest) -> ASGIApp:
        """Submit the request, and return its answer or a stream of it."""
        runner = await self.runner(body.model)
        head = answer_head("msg", self.model, runner)
        translation = as_chat(body)
        with naming_fields(translation.field_of):
            request, images_s = await self.prepare_request(
                translation.chat, runner.facts, head.id, effort=EFFORT_FIELD
            )
            self.report_unenforced_tools(translation.chat, runner.facts)
            check_server_tool_conflicts(translation.chat, request)
            stream: AnswerStream | ToolLoop
            if body.server_tools:
                stream = await start_tool_loop(
                    translation.chat, request, runner, self.service, shows_calls=True
                )
            else:
                stream = await runner.asubmit(request)
        answer = naming_media(stream, media_names(request, translation.field_of))
        options = {
            "has_transforms": bool(body.return_image_transforms),
            "has_places": bool(body.return_places),
        }
        if body.stream:
            events = MessageEvents(
                head, len(stream.prompt_token_ids), runs_calls=bool(body.server_tools), **options
            )
            return self.stream_events(answer, events, hides_sizes=False, images_s=images_s)
        return WholeAnswer(
            answer,
            lambda completion: [
                message_body(
                    head,
                    completion,
                    stream.rounds if isinstance(stream, ToolLoop) else (),
                    **options,
                )
            ],
            self.service,
            self.headers,
            images_s,
        )


class _CountCall(MessagesCall[CountRequest]):
    """Counts the tokens of one conversation."""

    async def start(self, body: CountRequest) -> ASGIApp:
        """Tokenize the prompt of the messages and return its number of tokens."""
        runner = await self.runner(body.model)
        translation = as_chat(body)
        with naming_fields(translation.field_of):
            request, _ = await self.prepare_request(
                translation.chat, runner.facts, "", effort=EFFORT_FIELD
            )
            tokens = await runner.atokenize(request)
        content = msgspec.json.encode(CountedTokens(len(tokens.token_ids)))
        return ASGIResponse(body=content, headers=self.headers)
