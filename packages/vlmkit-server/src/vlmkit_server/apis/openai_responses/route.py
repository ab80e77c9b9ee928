"""The routes of ``/v1/responses``, OpenAI's Responses API, including stored responses.

Bodies are answered in :mod:`vlmkit_server.apis.openai_responses.calls`.
"""

from typing import Any, Literal

import msgspec
from litestar import Controller, Request, Response, post, route
from litestar.di import NamedDependency
from litestar.enums import HttpMethod, MediaType
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send

from vlmkit.errors import RequestError
from vlmkit_server.admission.admission import admission_of
from vlmkit_server.apis.openai_chat.rendering import InputTokens, Rendered
from vlmkit_server.apis.openai_responses.answer import ResponseBody
from vlmkit_server.apis.openai_responses.calls import ResponsesHandlers
from vlmkit_server.apis.openai_responses.queries import (
    ItemsPage,
    ItemsQuery,
    RetrieveQuery,
    items_page,
    retrieve_query,
)
from vlmkit_server.apis.openai_responses.sse_replay import SseReplay
from vlmkit_server.apis.openai_responses.store import ResponseStore
from vlmkit_server.apis.openai_responses.wire import INPUT_TOKENS, RENDER_RESPONSES, RESPONSES
from vlmkit_server.conversation.host import Host
from vlmkit_server.exchange.background import BackgroundWork
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import caller_of
from vlmkit_server.http.errors import OpenAiErrors
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.interfaces.api import Route

PATH = "/v1/responses"
LINKS = (
    ("GET", "/v1/responses/{response_id}"),
    ("GET", "/v1/responses/{response_id}/input_items"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("DELETE", "/v1/responses/{response_id}"),
)


class DeletedResponse(msgspec.Struct):
    """The answer to the deletion of a response."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ResponsesApi(OpenAiErrors):
    """The Responses API."""

    def routes(self, host: Host) -> list[Route | type[Controller]]:
        """Return the routes of conversations and of stored responses."""
        store = ResponseStore(host.service.settings.responses)
        handlers = ResponsesHandlers(store, BackgroundWork(host.service.admission))
        host.dependencies["responses"] = store
        return [
            Route(
                path=PATH,
                scope="chat",
                handler=handlers.create,
                reader=RESPONSES,
                answer=ResponseBody,
                event="response event",
                has_timing=True,
                links=LINKS,
                buffers_streams=True,
            ),
            Route(
                path=f"{PATH}/input_tokens",
                scope="chat",
                handler=handlers.count,
                reader=INPUT_TOKENS,
                answer=InputTokens,
                answers="prompt",
            ),
            Route(
                path=f"{PATH}/render",
                scope="chat",
                handler=handlers.render,
                reader=RENDER_RESPONSES,
                answer=Rendered,
                answers="prompt",
            ),
            StoredResponsesController,
        ]


class StoredResponsesController(Controller):
    """Stored responses: read, listed, cancelled and deleted."""

    path = PATH

    # One handler, since Litestar's answer to OPTIONS has only the methods of the last one.
    @route(
        "/{response_id:str}",
        http_method=(*READ, HttpMethod.DELETE),
        status_code=200,
        operation=Operation(
            ResponseBody, events="response event", deleted=DeletedResponse, query=RetrieveQuery
        ),
    )
    async def stored(
        self,
        request: Request[Any, Any, Any],
        responses: NamedDependency[ResponseStore],
        service: NamedDependency[Service],
        response_id: FromPath[str],
    ) -> ASGIApp:
        """Return a stored response, or delete it; deletion cancels a background response."""
        owner = caller_of(request).owner
        if request.method == HttpMethod.DELETE:
            responses.delete(response_id, owner)
            return ASGIResponse(body=msgspec.json.encode(DeletedResponse(response_id)))
        found = responses.find(response_id, owner)
        query = retrieve_query(dict(request.query_params.multi_items()))
        is_head = request.method == HttpMethod.HEAD
        if not query.stream or is_head:
            return ASGIResponse(body=found.body, is_head_response=is_head)
        if found.log is None:
            raise RequestError(
                "only a response that was made in the background can be streamed again",
                param="stream",
                code="unsupported_value",
            )
        number = -1 if query.starting_after is None else query.starting_after
        hides_sizes = bool(query.include_obfuscation)
        replay = SseReplay(found.log, number, service, {}, hides_sizes=hides_sizes)
        return _with_admission(replay)

    @route(
        "/{response_id:str}/input_items",
        http_method=READ,
        operation=Operation(ItemsPage, query=ItemsQuery),
    )
    async def items(
        self,
        request: Request[Any, Any, Any],
        responses: NamedDependency[ResponseStore],
        response_id: FromPath[str],
    ) -> Response[bytes]:
        """List the input items of a stored response: the whole conversation before it."""
        turn = responses.find(response_id, caller_of(request).owner).turn
        previous = turn.previous.items() if turn.previous else []
        query = dict(request.query_params.multi_items())
        return _json(items_page([*previous, *turn.input_items], query))

    @post("/{response_id:str}/cancel", status_code=200, operation=Operation(ResponseBody))
    async def cancel(
        self,
        request: Request[Any, Any, Any],
        responses: NamedDependency[ResponseStore],
        response_id: FromPath[str],
    ) -> Response[bytes]:
        """Cancel a background response; one that has ended is unchanged."""
        return _json(responses.cancel(response_id, caller_of(request).owner))


def _with_admission(app: ASGIApp) -> ASGIApp:
    """Return a response that counts as an admitted request, since it may take long."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        admission_of(scope).admit()
        await app(scope, receive, send)

    return respond


def _json(body: bytes) -> Response[bytes]:
    return Response(body, media_type=MediaType.JSON)
