"""``POST /tokenize`` and ``POST /detokenize``: what a prompt comes to, without an answer."""

import asyncio
from typing import Any

import msgspec
from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from vlmkit.ask.prompt_tokens import PromptTokens
from vlmkit.ask.request import Request as Asked
from vlmkit.errors import RequestError
from vlmkit.seams.runner import Runner
from vlmkit.server.call import Call, MessagesCall
from vlmkit.server.convert import Converter, field_of
from vlmkit.server.plain import blame, check_plain_size
from vlmkit.server.service import Service
from vlmkit.server.wire_tokens import (
    DETOKENIZE,
    TOKENIZE,
    Detokenized,
    DetokenizeRequest,
    TokenizeRequest,
    Tokens,
)


class TokensController(Controller):
    """Counts and reads tokens."""

    @post("/tokenize", status_code=200)
    async def tokenize(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Return the tokens of a text or a conversation."""
        return _TokenizeCall(request, service, TOKENIZE, converter)

    @post("/detokenize", status_code=200)
    async def detokenize(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> ASGIApp:
        """Return the text of tokens."""
        return _DetokenizeCall(request, service, DETOKENIZE)


class _TokenizeCall(MessagesCall[TokenizeRequest]):
    """Tells what one prompt comes to."""

    async def start(self, body: TokenizeRequest) -> ASGIApp:
        """Let the runner read the prompt."""
        runner = await self.runner(body.model)
        try:
            found = await runner.atokenize(await self._asked(body, runner))
        except RequestError as error:
            error.param = field_of(error, body.messages or ())
            raise
        content = await asyncio.to_thread(_told, found, runner, wants_texts=body.return_token_strs)
        return ASGIResponse(body=content, headers=self.headers)

    async def _asked(self, body: TokenizeRequest, runner: Runner) -> Asked:
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("send either prompt or messages", param="prompt")
        if body.prompt is not None:
            check_plain_size([body.prompt], self.service.settings.max_text_chars, runner.facts)
            return Asked(text=body.prompt, adds_special=body.add_special_tokens is not False)
        if body.add_special_tokens:
            raise RequestError(
                "the chat template alone says what is put around messages",
                param="add_special_tokens",
                code="unsupported_parameter",
            )
        return Asked(messages=await self.converter.messages(body.messages or [], runner.facts))


class _DetokenizeCall(Call[DetokenizeRequest]):
    """Tells what some tokens say."""

    async def start(self, body: DetokenizeRequest) -> ASGIApp:
        """Let the runner read the tokens, in a thread: they can be many."""
        runner = await self.runner(body.model)
        try:
            check_plain_size([body.tokens], self.service.settings.max_text_chars, runner.facts)
        except RequestError as error:
            blame(error, "tokens")
            raise
        if max(body.tokens, default=0) >= runner.facts.limits.vocab_size:
            raise RequestError("tokens has one that is not in the vocabulary", param="tokens")
        said = Detokenized(await asyncio.to_thread(runner.detokenize, body.tokens))
        return ASGIResponse(body=msgspec.json.encode(said), headers=self.headers)


def _told(found: PromptTokens, runner: Runner, *, wants_texts: bool | None) -> bytes:
    ids, most = found.token_ids, runner.facts.limits.max_sequence_tokens
    texts = [runner.token_bytes(i).decode(errors="replace") for i in ids] if wants_texts else None
    return msgspec.json.encode(Tokens(len(ids), most, ids, texts, found.image_tokens))
