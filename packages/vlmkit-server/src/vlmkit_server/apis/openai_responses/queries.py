"""Queries about a stored response: pages of its items, and which of its events to stream."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from vlmkit.errors import RequestError
from vlmkit_server.apis.openai_responses.items import StoredItem


class ItemsQuery(msgspec.Struct):
    """The query for a page of items."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


class ItemsPage(msgspec.Struct):
    """A page of items, with the ids of the first and the last."""

    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


def items_page(items: Sequence[StoredItem], query: Mapping[str, str]) -> bytes:
    """Encode a page of items.

    Args:
        items: all items, in order.
        query: the query parameters of the URL.

    Raises:
        RequestError: a parameter is wrong.
    """
    parsed = _parsed(query)
    ordered = [*items] if parsed.order == "asc" else [*reversed(items)]
    begin = 0
    if parsed.after is not None:
        ids = [item.id for item in ordered]
        if parsed.after not in ids:
            raise RequestError("after names no item of this response", param="after")
        begin = ids.index(parsed.after) + 1
    page = ordered[begin : begin + parsed.limit]
    return msgspec.json.encode(
        ItemsPage(
            [msgspec.Raw(item.content) for item in page],
            page[0].id if page else None,
            page[-1].id if page else None,
            begin + len(page) < len(ordered),
        )
    )


def _parsed(query: Mapping[str, str]) -> ItemsQuery:
    try:
        return msgspec.convert(query, ItemsQuery, strict=False)
    except msgspec.ValidationError as error:
        name = "order" if "$.order" in str(error) else "limit"
        expected = "asc or desc" if name == "order" else "1 to 100"
        raise RequestError(f"{name} must be {expected}", param=name) from None


class RetrieveQuery(msgspec.Struct):
    """Whether to stream events, and after which one.

    OpenAI's other parameters request fields that are always sent.
    """

    stream: bool | None = None
    starting_after: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    include_obfuscation: bool | None = None


_EXPECTED = {"starting_after": "the number of an event", "stream": "true or false"}


def retrieve_query(query: Mapping[str, str]) -> RetrieveQuery:
    """Decode the query of a stored response.

    Raises:
        RequestError: a parameter is wrong.
    """
    try:
        found = msgspec.convert(query, RetrieveQuery, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        expected = _EXPECTED.get(name, "true or false")
        raise RequestError(f"{name} must be {expected}", param=name) from None
    if found.starting_after is not None and not found.stream:
        raise RequestError("starting_after needs stream to be true", param="starting_after")
    return found
