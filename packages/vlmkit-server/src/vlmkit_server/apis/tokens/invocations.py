"""``POST /invocations``: one route for chats, plain texts and vectors, as SageMaker has it.

The fields of a body decide which API answers it: ``messages``, ``prompt`` or ``input``.
"""

from typing import Literal

import msgspec
from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit_server.apis.openai_chat.route import answer_chat
from vlmkit_server.apis.openai_chat.wire import CHAT
from vlmkit_server.apis.openai_completions.route import complete
from vlmkit_server.apis.openai_completions.wire import COMPLETIONS
from vlmkit_server.apis.openai_embeddings.route import embed
from vlmkit_server.apis.openai_embeddings.wire import EMBEDDINGS
from vlmkit_server.auth.key import Key
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.http.errors import ScopeMissing
from vlmkit_server.wire.structure import check_structure


class _Keys(msgspec.Struct):
    """The fields that decide which API answers a body; their values are not decoded."""

    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


async def invoke(exchange: Exchange, content: bytes) -> ASGIApp:
    """Answer a chat, complete a text, or return vectors.

    Raises:
        RequestError: no API has such a body.
        ScopeMissing: the key does not permit vectors.
    """
    is_for = await exchange.decoded(content, _api_of)
    if is_for == "messages":
        return await answer_chat(exchange, await exchange.read_as(CHAT, content))
    if is_for == "prompt":
        return await complete(exchange, await exchange.read_as(COMPLETIONS, content))
    key: Key | None = exchange.http.scope["state"].get("key")
    if key is not None and not key.may("embed"):
        raise ScopeMissing("this API key may not do this: it needs the scope 'embed'")
    return await embed(exchange, await exchange.read_as(EMBEDDINGS, content))


def _api_of(content: bytes) -> Literal["messages", "prompt", "input"]:
    """Return the field of a body that decides which API answers it; slow for a large body.

    Raises:
        RequestError: it has no such field, is no JSON object, or is nested too deeply.
    """
    check_structure(content)
    try:
        keys = msgspec.json.decode(content, type=_Keys)
    except (ValueError, RecursionError):  # errors of msgspec and of Unicode are ValueErrors
        raise RequestError("the body is not a JSON object", code="invalid_json") from None
    for name in ("messages", "prompt", "input"):
        if getattr(keys, name) is not msgspec.UNSET:
            return name
    raise RequestError("the body needs messages, prompt or input", param="messages")
