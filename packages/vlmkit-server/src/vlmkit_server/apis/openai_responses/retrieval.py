"""What a query asks of a stored response."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.errors import RequestError


class RetrieveQuery(msgspec.Struct):
    """Whether, and from where on, events are wanted; all else of OpenAI's is told anyway."""

    stream: bool | None = None
    starting_after: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    include_obfuscation: bool | None = None


_EXPECTED = {"starting_after": "the number of an event", "stream": "true or false"}


def retrieve_query(query: Mapping[str, str]) -> RetrieveQuery:
    """Return what a query asks for.

    Raises:
        RequestError: a parameter makes no sense.
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
