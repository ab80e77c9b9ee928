"""``POST /tokenize`` and ``POST /detokenize``: what a prompt comes to, without an answer."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner, RunnerFacts
from vlmkit.kit.runner_tokens import adetokenize
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request as RunnerRequest
from vlmkit_server.apis.openai_chat.call import Call, MessagesCall
from vlmkit_server.apis.openai_chat.convert import Converter, field_of_chat
from vlmkit_server.apis.openai_chat.translation import naming_fields
from vlmkit_server.apis.openai_chat.wire import CHAT, ChatMessage, ChatRequest
from vlmkit_server.apis.openai_responses.wire import InputTokens
from vlmkit_server.apis.tokens.render import check_no_server_tools
from vlmkit_server.apis.tokens.wire_tokenize import (
    DETOKENIZE,
    TOKENIZE,
    Detokenized,
    DetokenizeRequest,
    TokenizeRequest,
    TokenPiece,
    Tokens,
)
from vlmkit_server.exchange.full_response import PiecedAnswer
from vlmkit_server.exchange.json_pieces import HOLE, MANY_EACH, filled, listed
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.operation import Operation
from vlmkit_server.wire.plain_prompts import check_plain_size, rename_param

_MESSAGE_FIELDS = sorted(
    {*TokenizeRequest.__struct_fields__} & {*ChatRequest.__struct_fields__} - {"model", "messages"}
)
"""The fields that a chat has, too, and that say how messages are written."""


class TokensController(Controller):
    """Counts and reads tokens."""

    @post(
        "/v1/chat/completions/input_tokens",
        status_code=200,
        operation=Operation(InputTokens, ChatRequest),
    )
    async def count(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Return how many tokens a conversation has."""
        return _CountCall(request, service, CHAT, converter)

    @post(
        "/tokenize",
        status_code=200,
        operation=Operation(Tokens, TokenizeRequest),
    )
    async def tokenize(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Return the tokens of a text or a conversation."""
        return _TokenizeCall(request, service, TOKENIZE, converter)

    @post("/detokenize", status_code=200, operation=Operation(Detokenized, DetokenizeRequest))
    async def detokenize(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> ASGIApp:
        """Return the text of tokens."""
        return _DetokenizeCall(request, service, DETOKENIZE)


class _TokenizeCall(MessagesCall[TokenizeRequest]):
    """Tells what one prompt comes to."""

    async def start(self, body: TokenizeRequest) -> ASGIApp:
        """Let the runner read the prompt."""
        name = self.service.name(body.model)
        runner = await self.runner(name)
        given = [body.prompt is not None, body.messages is not None, body.content is not None]
        if sum(given) != 1:
            raise RequestError("send one of prompt, messages and content", param="prompt")
        if body.content is None and (body.add_special is not None or body.with_pieces is not None):
            raise RequestError("add_special and with_pieces are for content", param="content")
        if body.messages is None:
            found = await runner.atokenize(self._text(body, runner.facts))
        else:
            found = await self._conversation(_chat(body, name, body.messages), runner)
        make = partial(
            _encode,
            found,
            runner,
            has_texts=bool(body.return_token_strs),
            has_pieces=bool(body.with_pieces),
        )
        return PiecedAnswer(make, self.service, self.headers)

    def _text(self, body: TokenizeRequest, facts: RunnerFacts) -> RunnerRequest:
        """Return the request for a text, which no chat template writes."""
        if given := [
            field for field in _MESSAGE_FIELDS if getattr(body, field) not in (None, [], {})
        ]:
            raise RequestError(f"{given[0]} is for messages, not for a text", param=given[0])
        if body.content is None:
            text, adds_special = body.prompt or "", body.add_special_tokens is not False
        else:
            text, adds_special = body.content, bool(body.add_special)
        check_plain_size([text], self.service.settings.max_text_chars, facts)
        return RunnerRequest(
            text=text,
            adds_special=adds_special,
            account=self.caller.account,
        )

    async def _conversation(self, chat: ChatRequest, runner: Runner) -> PromptTokens:
        """Return what a chat's prompt comes to."""
        with naming_fields(partial(field_of_chat, body=chat)):
            request, _ = await self.prepare_request(chat, runner.facts, "")
            return await runner.atokenize(request)


class _CountCall(MessagesCall[ChatRequest]):
    """Counts the tokens of one conversation, as llama.cpp's server does."""

    async def start(self, body: ChatRequest) -> ASGIApp:
        """Let the runner read the prompt."""
        check_no_server_tools(body)
        runner = await self.runner(body.model)
        with naming_fields(partial(field_of_chat, body=body)):
            request, _ = await self.prepare_request(body, runner.facts, "")
            found = await runner.atokenize(request)
        content = msgspec.json.encode(InputTokens(len(found.token_ids)))
        return ASGIResponse(body=content, headers=self.headers)


class _DetokenizeCall(Call[DetokenizeRequest]):
    """Tells what some tokens say."""

    async def start(self, body: DetokenizeRequest) -> ASGIApp:
        """Let the runner read the tokens, in a thread: they can be many."""
        runner = await self.runner(body.model)
        try:
            check_plain_size([body.tokens], self.service.settings.max_text_chars, runner.facts)
            text = await adetokenize(runner, body.tokens)
        except RequestError as error:
            rename_param(error, "tokens")
            raise
        detokenized = Detokenized(text, text)
        return ASGIResponse(body=msgspec.json.encode(detokenized), headers=self.headers)


def _chat(body: TokenizeRequest, model: str, messages: list[ChatMessage]) -> ChatRequest:
    """Return the body of the chat whose prompt is meant."""
    if body.add_special_tokens:
        raise RequestError(
            "the chat template alone says what is put around messages",
            param="add_special_tokens",
            code="unsupported_parameter",
        )
    fields = {field: getattr(body, field) for field in _MESSAGE_FIELDS}
    return ChatRequest(model=model, messages=messages, **fields)


def _piece(token_id: int, content: bytes) -> TokenPiece:
    try:
        return TokenPiece(token_id, content.decode())
    except UnicodeDecodeError:
        return TokenPiece(token_id, [*content])


def _encode(
    found: PromptTokens, runner: Runner, *, has_texts: bool, has_pieces: bool
) -> Iterator[bytes]:
    """Encode an answer, in pieces."""
    ids, max_tokens = found.token_ids, runner.facts.limits.max_sequence_tokens
    tokens: Iterable[int | TokenPiece] = ids
    if has_pieces:
        tokens = (_piece(token_id, runner.token_bytes(token_id)) for token_id in ids)
    fillings = [listed(tokens, MANY_EACH)]
    if has_texts:
        texts = (runner.token_bytes(i).decode(errors="replace") for i in ids)
        fillings.append(listed(texts, MANY_EACH))
    body = Tokens(len(ids), max_tokens, HOLE, HOLE if has_texts else None, found.image_tokens)
    return filled(body, fillings)
