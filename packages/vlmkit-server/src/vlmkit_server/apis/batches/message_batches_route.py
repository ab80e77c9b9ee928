"""``/v1/messages/batches``: batches of messages, for Anthropic's clients."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from litestar import Controller, Request, Response, post, route
from litestar.di import NamedDependency
from litestar.enums import HttpMethod, MediaType
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, HTTPResponseBodyEvent, Receive, Scope, Send

from vlmkit.errors import RequestError
from vlmkit_server.apis.batches.batches import Batches, batches_or_not_found, require_batches
from vlmkit_server.apis.batches.message_batches import check, lines, message_batch, results
from vlmkit_server.apis.batches.message_batches_wire import (
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchesPage,
    MessageBatchesQuery,
    MessageBatchRequest,
)
from vlmkit_server.apis.batches.wire import BatchBody
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.http.caller import caller_of
from vlmkit_server.http.errors import error_handlers
from vlmkit_server.http.message_errors import MessageErrorBody, message_error
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.wire.body import BodyReader

REQUESTS = BodyReader(MessageBatchRequest, about=frozenset())
_LINES = "application/octet-stream"


class MessageBatchesController(Controller):
    """The batch API for messages."""

    path = "/v1/messages/batches"
    exception_handlers = error_handlers(message_error)

    # One handler: with several, the framework's OPTIONS response has the last one's methods.
    @route(
        http_method=(*READ, HttpMethod.POST),
        status_code=200,
        operation=Operation(
            MessageBatchesPage,
            MessageBatchRequest,
            query=MessageBatchesQuery,
            posted=MessageBatch,
            error=MessageErrorBody,
        ),
    )
    async def batches(
        self,
        request: Request[Any, Any, Any],
        host: NamedDependency[Host],
        batches: NamedDependency[Batches | None],
    ) -> ASGIApp:
        """List batches of messages, or create one."""
        if request.method == HttpMethod.POST:
            return Exchange(request, host, REQUESTS, partial(create_batch, found=batches))
        query = _query(dict(request.query_params.multi_items()))
        page, has_more = [], False
        if batches is not None:
            owner, num = caller_of(request).owner, query.limit + 1
            found = await batches.store.page(
                owner, num, query.after_id, query.before_id, "msgbatch"
            )
            has_more = len(found) == num
            shown = found[-query.limit :] if query.before_id else found[: query.limit]
            page = [await _message_batch(batches, each) for each in shown]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        body = msgspec.json.encode(MessageBatchesPage(page, has_more, first, last))
        return ASGIResponse(body=body)

    @route(
        "/{message_batch_id:str}",
        http_method=(*READ, HttpMethod.DELETE),
        status_code=200,
        operation=Operation(MessageBatch, deleted=DeletedMessageBatch, error=MessageErrorBody),
    )
    async def batch(
        self,
        request: Request[Any, Any, Any],
        batches: NamedDependency[Batches | None],
        message_batch_id: FromPath[str],
    ) -> Response[bytes]:
        """Return the state of a batch of messages, or delete it with its results."""
        batches, owner = batches_or_not_found(batches), caller_of(request).owner
        if request.method == HttpMethod.DELETE:
            await batches.delete(message_batch_id, owner)
            return _json(DeletedMessageBatch(message_batch_id))
        body = await batches.store.find(message_batch_id, owner, "msgbatch")
        return _json(await _message_batch(batches, body))

    @post(
        "/{message_batch_id:str}/cancel",
        status_code=200,
        operation=Operation(MessageBatch, error=MessageErrorBody),
    )
    async def cancel(
        self,
        request: Request[Any, Any, Any],
        batches: NamedDependency[Batches | None],
        message_batch_id: FromPath[str],
    ) -> Response[bytes]:
        """Cancel a batch of messages; one that has ended stays as it is."""
        batches = batches_or_not_found(batches)
        body = await batches.cancel(message_batch_id, caller_of(request), "msgbatch")
        return _json(await _message_batch(batches, body))

    @route(
        "/{message_batch_id:str}/results",
        http_method=READ,
        operation=Operation(bytes, error=MessageErrorBody),
    )
    async def results(
        self,
        request: Request[Any, Any, Any],
        batches: NamedDependency[Batches | None],
        message_batch_id: FromPath[str],
    ) -> ASGIApp:
        """Return the result of each request of a batch, once it has ended."""
        batches, owner = batches_or_not_found(batches), caller_of(request).owner
        body = await batches.store.find(message_batch_id, owner, "msgbatch")
        if body.ended_at is None:
            raise RequestError("the batch has not ended", code="batch_not_ended")
        if request.method == HttpMethod.HEAD:
            return ASGIResponse(is_head_response=True, media_type=_LINES)
        names = [name for name in (body.output_file_id, body.error_file_id) if name]
        for name in names:
            await batches.files.find(name, owner)  # raises if it was deleted or has expired
        return _Results(batches, names)


async def create_batch(
    exchange: Exchange, body: MessageBatchRequest, found: Batches | None
) -> ASGIApp:
    """Store the requests of a batch as an input file, which is checked like any other."""
    batches = require_batches(found)
    most = exchange.service.settings.data.max_batch_lines
    await asyncio.to_thread(check, body.requests, most)
    created = await batches.create_of_lines(lines(body.requests), exchange.caller)
    body_now = message_batch(created, 0)
    body_now.request_counts.processing = len(body.requests)
    return exchange.json(body_now)


class _Results:
    """Sends the results of the requests, with one piece at a time in memory.

    Args:
        batches: have the files.
        names: the files.
    """

    def __init__(self, batches: Batches, names: list[str]) -> None:
        self._folder = batches.files.folder
        self._names = names

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the results."""
        headers = [(b"content-type", _LINES.encode()), (b"x-content-type-options", b"nosniff")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for name in self._names:
            chunks = results(self._folder, name)
            while chunk := await asyncio.to_thread(_next, chunks):
                await send(_piece(chunk, more=True))
        await send(_piece(b"", more=False))


def _next(chunks: Iterator[bytes]) -> bytes:
    """Return the next nonempty chunk, or an empty one at the end."""
    return next((chunk for chunk in chunks if chunk), b"")


def _piece(body: bytes, *, more: bool) -> HTTPResponseBodyEvent:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _message_batch(batches: Batches, body: BatchBody) -> MessageBatch:
    is_cut = body.status in ("cancelled", "expired")
    return message_batch(body, await batches.store.num_left_out(body.id) if is_cut else 0)


def _query(query: dict[str, str]) -> MessageBatchesQuery:
    try:
        page_query = msgspec.convert(query, MessageBatchesQuery, strict=False)
    except msgspec.ValidationError:
        raise RequestError("limit must be 1 to 1000", param="limit") from None
    if page_query.after_id is not None and page_query.before_id is not None:
        raise RequestError("send either after_id or before_id", param="before_id")
    return page_query


def _json(body: msgspec.Struct) -> Response[bytes]:
    return Response(msgspec.json.encode(body), media_type=MediaType.JSON)
