"""``POST /api/chat`` and ``POST /api/generate``: answers, whole or as lines."""

import time
from collections.abc import Iterator

import msgspec
from litestar.types import ASGIApp
from msgspec import UNSET

from vlmkit.errors import RequestError
from vlmkit.types.completion import Completion, Timings, Usage
from vlmkit_ollama.answer import (
    Content,
    MakeLine,
    Times,
    chat_line,
    generate_line,
    logprobs_of,
)
from vlmkit_ollama.conversation import chat_conversation, generate_conversation
from vlmkit_ollama.lines import AnswerLines
from vlmkit_ollama.models import resolved_name
from vlmkit_ollama.wire import AnswerFields, KeepAlive, OllamaChatRequest, OllamaGenerateRequest
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.interfaces.conversation import Conversation


async def chat(exchange: Exchange, body: OllamaChatRequest) -> ASGIApp:
    """Answer a conversation in Ollama's shape."""
    model = resolved_name(exchange, body.model)
    if not body.messages:
        return await _loaded(exchange, model, body.keep_alive, chat_line)
    return await _answered(exchange, body, chat_conversation(body, model), chat_line)


async def generate(exchange: Exchange, body: OllamaGenerateRequest) -> ASGIApp:
    """Answer a prompt in Ollama's shape."""
    model = resolved_name(exchange, body.model)
    if not body.prompt and not body.images:
        return await _loaded(exchange, model, body.keep_alive, generate_line)
    return await _answered(exchange, body, generate_conversation(body, model), generate_line)


async def _answered(
    exchange: Exchange, body: AnswerFields, conversation: Conversation, line: MakeLine
) -> ASGIApp:
    """Return the response to a conversation."""
    began_s = time.monotonic()
    answer = await exchange.run(conversation, "ollama")
    if body.think is True and "reasoning_effort" not in answer.runner.facts.options:
        exchange.report_ignored(frozenset({"think"}))
    times = Times(began_s, exchange.load_s)
    source, model, logprobs = answer.source, answer.head.model, None
    if answer.extras.logprobs:
        ends = answer.runner.facts.eos_ids.union(answer.params.stop_token_ids)
        logprobs = logprobs_of(answer.runner, ends)
    if body.stream is not False:
        lines = AnswerLines(model, line, times, lambda: source.timings, logprobs)
        return exchange.stream(answer, lines)

    def encode(completion: Completion) -> Iterator[bytes]:
        (choice,) = completion.choices
        whole = line(
            Content(choice.text, choice.reasoning, choice.tool_calls),
            model=model,
            done=True,
            done_reason=choice.finish_reason,
            logprobs=logprobs(choice.samples) if logprobs else UNSET,
            **times.counts(completion.usage, completion.timings, time.monotonic()),
        )
        yield msgspec.json.encode(whole)

    return exchange.whole(answer, encode)


async def _loaded(
    exchange: Exchange, model: str | None, keep_alive: KeepAlive, line: MakeLine
) -> ASGIApp:
    """Load a model, and return the response that says so.

    Raises:
        RequestError: the client asks to unload it, which only the operator can.
    """
    if _is_zero(keep_alive):
        raise RequestError(
            "keep_alive cannot unload a model of this server",
            param="keep_alive",
            code="unsupported_value",
            hint="the operator sets when models are unloaded: server.fleet",
        )
    began_s = time.monotonic()
    await exchange.lease(model)
    counts = Times(began_s, exchange.load_s).counts(Usage(), Timings(), time.monotonic())
    return exchange.json(
        line(Content(), model=exchange.model, done=True, done_reason="load", **counts)
    )


def _is_zero(keep_alive: KeepAlive) -> bool:
    """Tell whether a duration is zero, such as ``0`` or ``0s``."""
    if isinstance(keep_alive, str):
        return keep_alive.rstrip("hmsuµn") == "0"
    return keep_alive == 0
