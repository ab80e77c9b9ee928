"""``/v1/batches``: create, read, list and cancel batches, in OpenAI's shapes."""

from functools import partial
from typing import Any

import msgspec
from litestar import Controller, Request, Response, post, route
from litestar.di import NamedDependency
from litestar.enums import HttpMethod, MediaType
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit.settings.scope import Scope
from vlmkit_server.apis.batches.batches import Batches, batches_or_not_found, require_batches
from vlmkit_server.apis.batches.message_batches_route import MessageBatchesController
from vlmkit_server.apis.batches.wire import (
    BatchBody,
    BatchesPage,
    BatchesQuery,
    BatchRequest,
    Endpoint,
)
from vlmkit_server.auth.key import Key
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.http.caller import caller_of
from vlmkit_server.http.errors import OpenAiErrors, ScopeMissing
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.storage.disk_store import FilesOnDisk
from vlmkit_server.wire.body import BodyReader

# A batch has no answer, prompt or vector itself, so no field can change one.
_BODY_READER = BodyReader(BatchRequest, about=frozenset())
_SCOPES: dict[Endpoint, Scope] = {"/v1/embeddings": "embed"}  # "chat" for all others


class BatchesApi(OpenAiErrors):
    """The batch APIs of OpenAI and Anthropic; they store batches in ``server.data.folder``."""

    def routes(self, host: Host) -> list[type[Controller]]:
        """Return the routes of batches."""
        batches = None
        if isinstance(host.files, FilesOnDisk):
            batches = Batches(host.files, host.service, host.app)
            host.on_startup.append(batches.start)
            host.on_shutdown.append(batches.stop)
        host.dependencies["batches"] = batches
        return [BatchesController, MessageBatchesController]


class BatchesController(Controller):
    """The batch API. Its ``batches`` are None if the server has no folder to store them."""

    path = "/v1/batches"

    # One handler for all methods: Litestar's response to OPTIONS lists those of one handler only.
    @route(
        http_method=(*READ, HttpMethod.POST),
        status_code=200,
        operation=Operation(
            answer=BatchesPage, body=BatchRequest, query=BatchesQuery, posted=BatchBody
        ),
    )
    async def batches(
        self,
        request: Request[Any, Any, Any],
        host: NamedDependency[Host],
        batches: NamedDependency[Batches | None],
    ) -> ASGIApp:
        """List batches, or create one."""
        if request.method == HttpMethod.POST:
            return Exchange(request, host, _BODY_READER, partial(create_batch, found=batches))
        query = _query(dict(request.query_params.multi_items()))
        found = []
        if batches is not None:
            owner = caller_of(request).owner
            found = await batches.store.page(owner, query.limit + 1, query.after)
        page = found[: query.limit]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        body = BatchesPage(page, len(found) > len(page), first, last)
        return ASGIResponse(body=msgspec.json.encode(body))

    @route("/{batch_id:str}", http_method=READ, operation=Operation(answer=BatchBody))
    async def batch(
        self,
        request: Request[Any, Any, Any],
        batches: NamedDependency[Batches | None],
        batch_id: FromPath[str],
    ) -> Response[bytes]:
        """Return the state of a batch."""
        stored = batches_or_not_found(batches)
        return _json(await stored.store.find(batch_id, caller_of(request).owner))

    @post(
        "/{batch_id:str}/cancel",
        status_code=200,
        operation=Operation(answer=BatchBody),
    )
    async def cancel(
        self,
        request: Request[Any, Any, Any],
        batches: NamedDependency[Batches | None],
        batch_id: FromPath[str],
    ) -> Response[bytes]:
        """Cancel a batch; one that has ended stays as it is."""
        return _json(await batches_or_not_found(batches).cancel(batch_id, caller_of(request)))


async def create_batch(exchange: Exchange, body: BatchRequest, found: Batches | None) -> ASGIApp:
    """Store a batch; background tasks check its input file, and then run its requests."""
    batches = require_batches(found)
    scope = _SCOPES.get(body.endpoint, "chat")
    key: Key | None = exchange.http.scope["state"].get("key")
    if key is not None and not key.may(scope):
        raise ScopeMissing(f"this API key may not do this: it needs the scope {scope!r}")
    return exchange.json(await batches.create(body, exchange.caller))


def _query(query: dict[str, str]) -> BatchesQuery:
    try:
        return msgspec.convert(query, BatchesQuery, strict=False)
    except msgspec.ValidationError:  # of `limit`, since the other field accepts any text
        raise RequestError("limit must be 1 to 100", param="limit") from None


def _json(body: BatchBody) -> Response[bytes]:
    return Response(msgspec.json.encode(body), media_type=MediaType.JSON)
