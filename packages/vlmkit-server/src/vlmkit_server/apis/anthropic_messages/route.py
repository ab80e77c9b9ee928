"""``/v1/messages``: Anthropic's API, which answers a conversation, counts or renders it."""

from litestar.types import ASGIApp, Scope

from vlmkit_server.apis.anthropic_messages.answer import MessageBody, message_body
from vlmkit_server.apis.anthropic_messages.conversation import conversation_of
from vlmkit_server.apis.anthropic_messages.events import MessageEvents
from vlmkit_server.apis.anthropic_messages.wire import (
    COUNT,
    MESSAGES,
    RENDER_MESSAGES,
    CountedTokens,
    CountRequest,
    MessagesRequest,
    RenderMessagesRequest,
)
from vlmkit_server.apis.openai_chat.rendering import Rendered, read_prompt, render
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.conversation.tool_loop import ToolLoop
from vlmkit_server.http.errors import Fault
from vlmkit_server.http.message_errors import MessageErrorBody, message_error
from vlmkit_server.interfaces.api import Route

PATH = "/v1/messages"


class MessagesApi:
    """The messages API."""

    error_type = MessageErrorBody

    def write_error(self, fault: Fault, status: int, scope: Scope) -> bytes:
        """Encode an error in Anthropic's shape."""
        return message_error(fault, status, scope)

    def routes(self, _host: Host) -> list[Route]:
        """Return the routes of conversations."""
        return [
            Route(
                path=PATH,
                scope="chat",
                handler=answer_messages,
                reader=MESSAGES,
                answer=MessageBody,
                event="message event",
                has_timing=True,
            ),
            Route(
                path=f"{PATH}/count_tokens",
                scope="chat",
                handler=count_messages,
                reader=COUNT,
                answer=CountedTokens,
                answers="prompt",
            ),
            Route(
                path=f"{PATH}/render",
                scope="chat",
                handler=render_messages,
                reader=RENDER_MESSAGES,
                answer=Rendered,
                answers="prompt",
            ),
        ]


async def answer_messages(exchange: Exchange, body: MessagesRequest) -> ASGIApp:
    """Answer a conversation."""
    answer = await exchange.run(conversation_of(body), "msg", shows_calls=True)
    source = answer.source
    if body.stream:
        events = MessageEvents(
            answer.head,
            len(source.prompt_token_ids),
            answer.extras,
            runs_calls=bool(body.server_tools),
        )
        return exchange.stream(answer, events)
    return exchange.whole(
        answer,
        lambda completion: [
            message_body(
                answer.head,
                completion,
                source.rounds if isinstance(source, ToolLoop) else (),
                answer.extras,
            )
        ],
    )


async def count_messages(exchange: Exchange, body: CountRequest) -> ASGIApp:
    """Return how many tokens a conversation has."""
    prompt = await read_prompt(exchange, conversation_of(body))
    return exchange.json(CountedTokens(len(prompt.tokens.token_ids)))


async def render_messages(exchange: Exchange, body: RenderMessagesRequest) -> ASGIApp:
    """Return the prompt of a conversation of Anthropic's API."""
    return await render(
        exchange, conversation_of(body), "msg", light=body.light, stream=body.stream
    )
