"""``POST .../render``: a prompt as it would be computed, and where its images are; no answer.

Fleets ask for it, to send requests where their prefix is known, and to know what they cost.
"""

import codecs
from collections.abc import Iterator, Sequence as Seq
from functools import partial
from typing import Any, TypeVar

import msgspec
from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.types import ASGIApp
from msgspec.structs import replace

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.types.request import Request as RunnerRequest
from vlmkit_server.apis.anthropic_messages.route import EFFORT_FIELD
from vlmkit_server.apis.anthropic_messages.to_chat import as_chat
from vlmkit_server.apis.openai_chat.call import Call, MessagesCall, answer_head
from vlmkit_server.apis.openai_chat.convert import Converter, field_of_chat
from vlmkit_server.apis.openai_chat.prompt_options import EFFORT
from vlmkit_server.apis.openai_chat.translation import naming_fields
from vlmkit_server.apis.openai_chat.wire import ChatRequest
from vlmkit_server.apis.openai_completions.route import completion_params, completion_texts
from vlmkit_server.apis.openai_responses.conversation import ConversationCall
from vlmkit_server.apis.openai_responses.store import ResponseStore
from vlmkit_server.apis.openai_responses.truncation import check_fits
from vlmkit_server.apis.tokens.rendered_prompt import rendered
from vlmkit_server.apis.tokens.wire_render import (
    RENDER_CHAT,
    RENDER_COMPLETIONS,
    RENDER_MESSAGES,
    RENDER_RESPONSES,
    RenderChatRequest,
    RenderCompletionRequest,
    Rendered,
    RenderMessagesRequest,
    RenderResponsesRequest,
)
from vlmkit_server.exchange.full_response import PiecedAnswer
from vlmkit_server.exchange.json_pieces import HOLE, MANY_EACH, filled, listed
from vlmkit_server.exchange.service import Service
from vlmkit_server.gather import in_order
from vlmkit_server.http.errors import error_handlers
from vlmkit_server.http.message_errors import MessageErrorBody, message_error
from vlmkit_server.http.operation import Operation
from vlmkit_server.wire.answer_forms import requested_form
from vlmkit_server.wire.plain_prompts import Plain, plain_fields, plain_names, rename_param

B = TypeVar("B", bound=msgspec.Struct)


class RenderController(Controller):
    """The routes that render prompts without an answer."""

    path = "/v1"

    @post(
        "/chat/completions/render",
        status_code=200,
        operation=Operation(Rendered, RenderChatRequest),
    )
    async def chat(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Return the prompt of a conversation."""
        return _RenderChatCall(request, service, RENDER_CHAT, converter)

    @post(
        "/completions/render",
        status_code=200,
        operation=Operation(list[Rendered], RenderCompletionRequest),
    )
    async def completions(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> ASGIApp:
        """Return the prompts of plain texts."""
        return _RenderTextsCall(request, service, RENDER_COMPLETIONS)

    @post(
        "/messages/render",
        status_code=200,
        exception_handlers=error_handlers(message_error),
        operation=Operation(Rendered, RenderMessagesRequest, error=MessageErrorBody),
    )
    async def messages(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Return the prompt of a conversation of Anthropic's API."""
        return _RenderMessagesCall(request, service, RENDER_MESSAGES, converter)

    @post(
        "/responses/render",
        status_code=200,
        operation=Operation(Rendered, RenderResponsesRequest),
    )
    async def responses(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
        responses: NamedDependency[ResponseStore],
    ) -> ASGIApp:
        """Return the prompt of a conversation of the Responses API."""
        return _RenderResponseCall(request, service, RENDER_RESPONSES, converter, responses)


class _ConversationCall(MessagesCall[B]):
    """Renders one conversation."""

    async def rendered(
        self, chat: ChatRequest, kind: str, *, light: bool | None, effort: str = EFFORT
    ) -> ASGIApp:
        """Let the runner read the prompt; nothing is computed."""
        check_no_server_tools(chat)
        runner = await self.runner(chat.model)
        request_id = answer_head(kind, self.model, runner).id
        request, _ = await self.prepare_request(
            chat, runner.facts, request_id, effort=effort, light=bool(light)
        )
        tokens = await runner.atokenize(request)
        prompt = rendered(chat, self.model, request, tokens, runner.facts)
        return PiecedAnswer(partial(_encode, prompt, runner), self.service, self.headers)


class _RenderChatCall(_ConversationCall[RenderChatRequest]):
    """Renders what the chat API would answer."""

    async def start(self, body: RenderChatRequest) -> ASGIApp:
        """Render the messages."""
        with naming_fields(partial(field_of_chat, body=body)):
            return await self.rendered(body, "chatcmpl", light=body.light)


class _RenderMessagesCall(_ConversationCall[RenderMessagesRequest]):
    """Renders what Anthropic's API would answer."""

    async def start(self, body: RenderMessagesRequest) -> ASGIApp:
        """Render the turns."""
        translation = as_chat(body)
        with naming_fields(translation.field_of):
            return await self.rendered(
                translation.chat, "msg", light=body.light, effort=EFFORT_FIELD
            )


class _RenderResponseCall(ConversationCall[RenderResponsesRequest]):
    """Renders what the Responses API would answer."""

    async def start(self, body: RenderResponsesRequest) -> ASGIApp:
        """Render the items, and all that they build upon."""
        runner = await self.runner(body.model)

        async def prompt(request: RunnerRequest, chat: ChatRequest) -> Rendered:
            check_no_server_tools(chat)
            tokens = await runner.atokenize(request)
            if body.truncation == "auto":
                check_fits(request, tokens, runner)
            return rendered(chat, self.model, request, tokens, runner.facts)

        request_id = answer_head("resp", self.model, runner).id
        light = bool(body.light)
        processed = await self.process(body, runner, request_id, prompt, answers=False, light=light)
        return PiecedAnswer(partial(_encode, processed.result, runner), self.service, self.headers)


class _RenderTextsCall(Call[RenderCompletionRequest]):
    """Renders plain texts."""

    async def start(self, body: RenderCompletionRequest) -> ASGIApp:
        """Let the runner read each text, a few at a time."""
        runner = await self.runner(body.model)
        params = completion_params(body, runner.facts)
        texts = completion_texts(body, params, runner.facts, self.service.settings.max_text_chars)
        form = requested_form(body)

        async def render(named: tuple[str, Plain]) -> Rendered:
            name, text = named
            request = RunnerRequest(
                **plain_fields(text),
                adds_special=body.add_special_tokens is not False,
                params=params,
                constraint=form.constraint if form else None,
                tenant=self.caller.tenant,
                account=self.caller.account,
                cache_salt=body.cache_salt or "",
                priority=body.priority or 0,
                id=answer_head("cmpl", self.model, runner).id,
            )
            try:
                tokens = await runner.atokenize(request)
            except RequestError as error:
                rename_param(error, name)
                raise
            return rendered(body, self.model, request, tokens, runner.facts)

        named = zip(plain_names(texts, "prompt"), texts, strict=True)
        prompts = await in_order(render, named, runner.facts.bounds.num_workers)
        return PiecedAnswer(partial(_encode_all, prompts, runner), self.service, self.headers)


def check_no_server_tools(chat: ChatRequest) -> None:
    """Refuse tools of the server.

    Raises:
        RequestError: there are some.
    """
    if chat.server_tools:
        raise RequestError(
            "server_tools cannot be rendered: they are answered in rounds", param="server_tools"
        )


def _encode(prompt: Rendered, runner: Runner) -> Iterator[bytes]:
    """Encode a prompt, in pieces: there can be many tokens."""
    text = _text(prompt.token_ids, runner)
    return filled(replace(prompt, token_ids=HOLE), [text, listed(prompt.token_ids, MANY_EACH)])


def _text(token_ids: Seq[int], runner: Runner) -> Iterator[bytes]:
    """Encode the text of tokens, special ones included, in pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    yield b'"'
    for start in range(0, len(token_ids), MANY_EACH):
        content = b"".join(map(runner.token_bytes, token_ids[start : start + MANY_EACH]))
        yield msgspec.json.encode(decoder.decode(content))[1:-1]
    yield msgspec.json.encode(decoder.decode(b"", final=True))[1:-1] + b'"'


def _encode_all(prompts: Seq[Rendered], runner: Runner) -> Iterator[bytes]:
    """Encode prompts, in pieces."""
    for number, each in enumerate(prompts):
        yield b"," if number else b"["
        yield from _encode(each, runner)
    yield b"]"
