"""``POST /invocations``: one route for chats, plain texts and vectors, as SageMaker has it.

What a body holds says which API it is for: ``messages``, ``prompt`` or ``input``.
"""

from functools import partial
from typing import Any

import msgspec
from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.types import ASGIApp, Receive, Scope, Send

from vlmkit.errors import RequestError
from vlmkit_server.apis.openai_chat.answer import ChatCompletion
from vlmkit_server.apis.openai_chat.call import Call, read_json
from vlmkit_server.apis.openai_chat.convert import Converter
from vlmkit_server.apis.openai_chat.route import ChatCall
from vlmkit_server.apis.openai_chat.wire import CHAT, ChatRequest
from vlmkit_server.apis.openai_completions.route import CompletionCall
from vlmkit_server.apis.openai_completions.wire import COMPLETIONS
from vlmkit_server.apis.openai_embeddings.route import EmbeddingsCall
from vlmkit_server.apis.openai_embeddings.wire import EMBEDDINGS
from vlmkit_server.auth.key import Key
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import caller_of
from vlmkit_server.http.errors import ScopeMissing
from vlmkit_server.http.operation import Operation
from vlmkit_server.wire.structure import check_structure, is_light


class _Keys(msgspec.Struct):
    """Which of the fields a body has that say what it is for; their values are not decoded."""

    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class InvocationsController(Controller):
    """The route that hosts call whatever the model is for."""

    @post(
        "/invocations",
        status_code=200,
        operation=Operation(ChatCompletion, ChatRequest, "chat.completion.chunk", has_timing=True),
    )
    async def invoke(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        converter: NamedDependency[Converter],
    ) -> ASGIApp:
        """Answer a chat, go on with a text, or return vectors."""
        return _Invocation(request, service, converter)


class _Invocation:
    """Reads a body, and has it answered by the API that it is for."""

    def __init__(
        self, request: Request[Any, Any, Any], service: Service, converter: Converter
    ) -> None:
        self._request = request
        self._service = service
        self._converter = converter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, and answer it."""
        self._service.check_admission(caller_of(self._request).account)
        with self._service.bodies.opened(self._request) as sent:
            content = await read_json(self._request, sent)
            if is_light(content):
                keys = _keys(content)
            else:
                account = caller_of(self._request).account
                keys = await self._service.offload.run(partial(_keys, content), account)
        call = self._call(keys)
        call.content = content
        del content, keys  # the call drops the body when it is decoded
        await call(scope, receive, send)

    def _call(self, keys: _Keys) -> Call[Any]:
        """Return what answers a body.

        Raises:
            RequestError: it is for no API.
            ScopeMissing: the key may not ask for vectors.
        """
        if keys.messages is not msgspec.UNSET:
            return ChatCall(self._request, self._service, CHAT, self._converter)
        if keys.prompt is not msgspec.UNSET:
            return CompletionCall(self._request, self._service, COMPLETIONS)
        if keys.input is not msgspec.UNSET:
            key: Key | None = self._request.scope["state"].get("key")
            if key is not None and not key.may("embed"):
                raise ScopeMissing("this API key may not do this: it needs the scope 'embed'")
            return EmbeddingsCall(self._request, self._service, EMBEDDINGS, self._converter)
        raise RequestError("the body needs messages, prompt or input", param="messages")


def _keys(content: bytes) -> _Keys:
    """Return the fields that a body has; takes time where it is large.

    Raises:
        RequestError: it is no JSON object, or too deep.
    """
    check_structure(content)
    try:
        return msgspec.json.decode(content, type=_Keys)
    except (ValueError, RecursionError):  # errors of msgspec and of Unicode are ValueErrors
        raise RequestError("the body is not a JSON object", code="invalid_json") from None
