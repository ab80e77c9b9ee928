"""``POST /v1/chat/completions``: answers a conversation, whole or streamed."""

from functools import partial
from typing import Any

from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from vlmkit.types.sample import Sample
from vlmkit_server.apis.openai_chat.answer import ChatCompletion, completion_pieces, logprobs_of
from vlmkit_server.apis.openai_chat.call import MessagesCall, answer_head
from vlmkit_server.apis.openai_chat.convert import Converter, field_of_chat
from vlmkit_server.apis.openai_chat.events import AnswerEvents, UsageEvents
from vlmkit_server.apis.openai_chat.prompt_logprobs import (
    PromptScorer,
    check_not_streamed,
    prompt_logprobs,
)
from vlmkit_server.apis.openai_chat.tool_loop import check_server_tool_conflicts, start_tool_loop
from vlmkit_server.apis.openai_chat.translation import naming_fields
from vlmkit_server.apis.openai_chat.wire import CHAT, ChatRequest
from vlmkit_server.exchange.full_response import WholeAnswer
from vlmkit_server.exchange.json_pieces import drained
from vlmkit_server.exchange.named_errors import media_names, naming_media
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.operation import Operation


class ChatController(Controller):
    """The chat API."""

    path = "/v1/chat/completions"

    @post(
        status_code=200,
        operation=Operation(ChatCompletion, ChatRequest, "chat.completion.chunk", has_timing=True),
    )
    async def create(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Answer a conversation."""
        return ChatCall(request, service, CHAT, converter)


class ChatCall(MessagesCall[ChatRequest]):
    """Answers one conversation."""

    async def start(self, body: ChatRequest) -> ASGIApp:
        """Submit the request, and return its answer or a stream of it."""
        check_not_streamed(body.prompt_logprobs, body.stream)
        runner = await self.runner(body.model)
        head = answer_head("chatcmpl", self.model, runner)
        field_of = partial(field_of_chat, body=body)
        with naming_fields(field_of):
            request, images_s = await self.prepare_request(body, runner.facts, head.id)
            self.report_unenforced_tools(body, runner.facts)
            check_server_tool_conflicts(body, request)
            scores: list[Sample] = []
            if (num_top := body.prompt_logprobs) is not None:
                scorer = PromptScorer(runner, num_top, "prompt_logprobs")
                scores = await scorer.score(request)
            stream = (
                await start_tool_loop(body, request, runner, self.service)
                if body.server_tools
                else await runner.asubmit(request)
            )
        answer = naming_media(stream, media_names(request, field_of))
        logprobs = logprobs_of(runner, request.params) if body.logprobs else None
        has_token_ids = bool(body.return_token_ids)
        has_transforms = bool(body.return_image_transforms)
        # The response must not keep the request and its images in memory.
        has_places = request.places
        if not body.stream:
            return WholeAnswer(
                answer,
                lambda completion: completion_pieces(
                    head,
                    completion,
                    logprobs,
                    has_token_ids=has_token_ids,
                    prompt_logprobs=prompt_logprobs(runner, drained(scores)) if scores else None,
                    has_transforms=has_transforms,
                    has_places=has_places,
                ),
                self.service,
                self.headers,
                images_s,
            )
        options = body.stream_options
        events = AnswerEvents(
            head,
            stream.num_choices,
            usage=UsageEvents(options, lambda: stream.usage),
            logprobs=logprobs,
            prompt_token_ids=stream.prompt_token_ids if has_token_ids else None,
            has_transforms=has_transforms,
            has_places=has_places,
        )
        hides_sizes = bool(options and options.include_obfuscation)
        return self.stream_events(answer, events, hides_sizes=hides_sizes, images_s=images_s)
