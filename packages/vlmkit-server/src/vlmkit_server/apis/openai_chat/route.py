"""``/v1/chat/completions``: answers a conversation, whole or streamed, counts or renders it."""

from functools import partial

from litestar.types import ASGIApp

from vlmkit_server.apis.openai_chat.answer import ChatCompletion, completion_pieces, logprobs_of
from vlmkit_server.apis.openai_chat.conversation import conversation_of
from vlmkit_server.apis.openai_chat.events import AnswerEvents, UsageEvents
from vlmkit_server.apis.openai_chat.prompt_logprobs import check_not_streamed, prompt_logprobs
from vlmkit_server.apis.openai_chat.rendering import InputTokens, Rendered, count, render
from vlmkit_server.apis.openai_chat.wire import CHAT, RENDER_CHAT, ChatRequest, RenderChatRequest
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.exchange.json_pieces import drained
from vlmkit_server.http.errors import OpenAiErrors
from vlmkit_server.interfaces.api import Route

PATH = "/v1/chat/completions"


class ChatApi(OpenAiErrors):
    """The chat API."""

    def routes(self, _host: Host) -> list[Route]:
        """Return the routes of conversations."""
        return [
            Route(
                path=PATH,
                scope="chat",
                handler=answer_chat,
                reader=CHAT,
                answer=ChatCompletion,
                event="chat.completion.chunk",
                has_timing=True,
            ),
            Route(
                path=f"{PATH}/input_tokens",
                scope="chat",
                handler=count_chat,
                reader=CHAT,
                answer=InputTokens,
                answers="prompt",
            ),
            Route(
                path=f"{PATH}/render",
                scope="chat",
                handler=render_chat,
                reader=RENDER_CHAT,
                answer=Rendered,
                answers="prompt",
            ),
        ]


async def answer_chat(exchange: Exchange, body: ChatRequest) -> ASGIApp:
    """Answer a conversation."""
    if body.prompt_logprobs is not None:
        check_not_streamed(body.stream)
    answer = await exchange.run(conversation_of(body), "chatcmpl")
    runner, source, scores = answer.runner, answer.source, answer.scores
    logprobs = logprobs_of(runner, answer.params) if answer.extras.logprobs else None
    if not body.stream:
        return exchange.whole(
            answer,
            partial(
                completion_pieces,
                answer.head,
                logprobs,
                answer.extras,
                prompt_logprobs(runner, drained(scores)) if scores else None,
            ),
        )
    options = body.stream_options
    events = AnswerEvents(
        answer.head,
        source.num_choices,
        usage=UsageEvents(options, lambda: source.usage),
        logprobs=logprobs,
        extras=answer.extras,
        prompt_token_ids=source.prompt_token_ids,
    )
    return exchange.stream(
        answer, events, hides_sizes=bool(options and options.include_obfuscation)
    )


async def count_chat(exchange: Exchange, body: ChatRequest) -> ASGIApp:
    """Return how many tokens a conversation has."""
    return await count(exchange, conversation_of(body))


async def render_chat(exchange: Exchange, body: RenderChatRequest) -> ASGIApp:
    """Return the prompt of a conversation."""
    return await render(
        exchange,
        conversation_of(body),
        "chatcmpl",
        light=body.light,
        stream=body.stream,
        stream_options=body.stream_options,
    )
