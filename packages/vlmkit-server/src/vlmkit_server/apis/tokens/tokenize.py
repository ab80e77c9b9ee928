"""``POST /tokenize`` and ``POST /detokenize``: the tokens of a prompt, without an answer."""

from collections.abc import Iterable, Iterator
from functools import partial

from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner, RunnerFacts
from vlmkit.kit.runner_tokens import adetokenize
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request as RunnerRequest
from vlmkit_server.apis.openai_chat.conversation import conversation_of
from vlmkit_server.apis.openai_chat.rendering import read_prompt
from vlmkit_server.apis.openai_chat.wire import ChatMessage, ChatRequest
from vlmkit_server.apis.tokens.wire_tokenize import (
    Detokenized,
    DetokenizeRequest,
    TokenizeRequest,
    TokenPiece,
    Tokens,
)
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.exchange.json_pieces import HOLE, MANY_EACH, filled, listed
from vlmkit_server.wire.plain_prompts import check_plain_size, rename_param

_MESSAGE_FIELDS = sorted(
    {*TokenizeRequest.__struct_fields__} & {*ChatRequest.__struct_fields__} - {"model", "messages"}
)
"""The fields for messages, which a chat has, too."""


async def tokenize(exchange: Exchange, body: TokenizeRequest) -> ASGIApp:
    """Return the tokens of a text or a conversation."""
    name = exchange.service.name(body.model)
    given = [body.prompt is not None, body.messages is not None, body.content is not None]
    if body.messages is not None and sum(given) == 1:
        _check_names(body)
        chat = _chat(body, name, body.messages)
        runner, _, found = await read_prompt(exchange, conversation_of(chat))
    else:
        runner = await exchange.lease(name)
        if sum(given) != 1:
            raise RequestError("send one of prompt, messages and content", param="prompt")
        _check_names(body)
        found = await runner.atokenize(_text(exchange, body, runner.facts))
    make = partial(
        _encode,
        found,
        runner,
        has_texts=bool(body.return_token_strs),
        has_pieces=bool(body.with_pieces),
    )
    return exchange.pieces(make)


async def detokenize(exchange: Exchange, body: DetokenizeRequest) -> ASGIApp:
    """Return the text of tokens."""
    runner = await exchange.lease(body.model)
    try:
        max_chars = exchange.service.settings.max_text_chars
        check_plain_size([body.tokens], max_chars, runner.facts)
        text = await adetokenize(runner, body.tokens)
    except RequestError as error:
        rename_param(error, "tokens")
        raise
    return exchange.json(Detokenized(text, text))


def _check_names(body: TokenizeRequest) -> None:
    """Refuse options of llama.cpp's text beside another one."""
    if body.content is None and (body.add_special is not None or body.with_pieces is not None):
        raise RequestError("add_special and with_pieces are for content", param="content")


def _text(exchange: Exchange, body: TokenizeRequest, facts: RunnerFacts) -> RunnerRequest:
    """Return the request for a text, which no chat template writes."""
    if given := [field for field in _MESSAGE_FIELDS if getattr(body, field) not in (None, [], {})]:
        raise RequestError(f"{given[0]} is for messages, not for a text", param=given[0])
    if body.content is None:
        text, adds_special = body.prompt or "", body.add_special_tokens is not False
    else:
        text, adds_special = body.content, bool(body.add_special)
    check_plain_size([text], exchange.service.settings.max_text_chars, facts)
    return RunnerRequest(text=text, adds_special=adds_special, account=exchange.caller.account)


def _chat(body: TokenizeRequest, model: str, messages: list[ChatMessage]) -> ChatRequest:
    """Return the body of the chat whose prompt is requested."""
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
