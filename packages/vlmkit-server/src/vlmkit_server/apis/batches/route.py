"""``/v1/batches``: create, read, list and cancel batches, in OpenAI's shapes."""

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
from vlmkit_server.apis.batches.wire import (
    BatchBody,
    BatchesPage,
    BatchesQuery,
    BatchRequest,
    Endpoint,
)
from vlmkit_server.apis.openai_chat.call import Call
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import caller_of
from vlmkit_server.http.errors import ScopeMissing
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.wire.body import BodyReader

# A batch has no answer, prompt or vector itself, so no field can change one.
_BODY_READER = BodyReader(BatchRequest, about=frozenset())
_SCOPES: dict[Endpoint, Scope] = {"/v1/embeddings": "embed"}  # "chat" for all others


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
        service: NamedDependency[Service],
        batches: NamedDependency[Batches | None],
    ) -> ASGIApp:
        """List batches, or create one."""
        if request.method == HttpMethod.POST:
            return _CreateBatch(request, service, batches)
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


class _CreateBatch(Call[BatchRequest]):
    """Creates a batch: the ASGI application that answers one POST."""

    def __init__(
        self, request: Request[Any, Any, Any], service: Service, batches: Batches | None
    ) -> None:
        super().__init__(request, service, _BODY_READER)
        self._batches = batches
        self._key = request.scope["state"].get("key")

    async def start(self, body: BatchRequest) -> ASGIApp:
        """Store a batch; background tasks check its input file, and then run its requests."""
        batches = require_batches(self._batches)
        scope = _SCOPES.get(body.endpoint, "chat")
        if self._key is not None and not self._key.may(scope):
            raise ScopeMissing(f"this API key may not do this: it needs the scope {scope!r}")
        created = await batches.create(body, self.caller)
        return ASGIResponse(body=msgspec.json.encode(created), headers=self.headers)


def _query(query: dict[str, str]) -> BatchesQuery:
    try:
        return msgspec.convert(query, BatchesQuery, strict=False)
    except msgspec.ValidationError:  # of `limit`, since the other field accepts any text
        raise RequestError("limit must be 1 to 100", param="limit") from None


def _json(body: BatchBody) -> Response[bytes]:
    return Response(msgspec.json.encode(body), media_type=MediaType.JSON)
