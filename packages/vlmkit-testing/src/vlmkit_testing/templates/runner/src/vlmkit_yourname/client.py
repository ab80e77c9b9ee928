"""HTTP requests to the other server, and what its answers mean."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import msgspec

from vlmkit.errors import EngineError, QueueFull, RequestError, VlmkitError

T = TypeVar("T")
MAX_EVENT_BYTES = 2**20
TIMEOUT = httpx2.Timeout(60.0, connect=10.0, pool=None)


class Choice(msgspec.Struct):
    """What is new of one choice."""

    index: int
    text: str = ""
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class Event(msgspec.Struct):
    """One event of a stream."""

    choices: list[Choice] = []
    error: dict[str, Any] | None = None


class ModelRow(msgspec.Struct):
    """One model of the other server."""

    id: str
    max_model_len: int | None = None


class Models(msgspec.Struct):
    """The models of the other server."""

    data: list[ModelRow]


class Tokens(msgspec.Struct):
    """The tokens of a prompt."""

    tokens: list[int]


class Text(msgspec.Struct):
    """The text of tokens."""

    prompt: str


class Client:
    """Speaks to one model of another server. All methods run in one event loop.

    Args:
        reference: the reference of the model.
        tls: whether the connection is encrypted.
        api_key: the key that the other server expects; empty for none.
    """

    def __init__(self, reference: str, *, tls: bool, api_key: str) -> None:
        parts = urlsplit(reference)
        self.model = parts.path.strip("/")
        scheme = "https" if tls else "http"
        self._http = httpx2.AsyncClient(
            base_url=f"{scheme}://{parts.netloc.rpartition('@')[2]}",
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            limits=httpx2.Limits(max_connections=None),
            timeout=TIMEOUT,
            trust_env=False,
        )

    async def find_model(self) -> ModelRow:
        """Return the model that the reference names, or the only one.

        Raises:
            EngineError: the other server cannot be reached, or does not have the model.
        """
        response = await self._http.get("/v1/models")
        rows = _decoded(response.status_code, response.content, Models).data
        rows = [row for row in rows if self.model in ("", row.id)]
        if len(rows) != 1 or rows[0].max_model_len is None:
            raise EngineError(f"the other server has not one loaded model {self.model!r}")
        self.model = rows[0].id
        return rows[0]

    async def post(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        """Return the decoded answer to a request.

        Raises:
            RequestError: the other server refuses the request.
            EngineError: it fails.
        """
        response = await self._http.post(path, json={"model": self.model, **body})
        return _decoded(response.status_code, response.content, kind)

    @asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[httpx2.Response]:
        """Send a request, and return its answer while it arrives; errors as for :meth:`post`."""
        given = {"model": self.model, "stream": True, **body}
        async with self._http.stream("POST", path, json=given, timeout=None) as response:
            if response.status_code != 200:
                raise _refusal(response.status_code)
            yield response

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()


async def events(response: httpx2.Response) -> AsyncIterator[Event]:
    """Yield the server-sent events of an answer, up to its end.

    Raises:
        EngineError: an event is too long or no event, or reports an error.
    """
    unread = b""
    async for data in response.aiter_bytes():
        *lines, unread = (unread + data).split(b"\n")
        if len(unread) > MAX_EVENT_BYTES:
            raise EngineError("the other server sent an event that is too long")
        for line in lines:
            content = line.removeprefix(b"data:").strip()
            if content == b"[DONE]":
                return
            if content:
                event = _decoded(200, content, Event)
                if event.error is not None:
                    raise EngineError("the other server failed while it answered")
                yield event


def _decoded(status: int, content: bytes, kind: type[T]) -> T:
    if status != 200:
        raise _refusal(status)
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError("the other server sent an answer of an unknown form") from error


def _refusal(status: int) -> VlmkitError:
    """Return the error of a status; its text is not repeated, since it may hold a client's."""
    if status == 429:
        return QueueFull("the other server has too many requests")
    if status in (400, 413, 422):
        return RequestError("the other server does not accept the request")
    return EngineError(f"the other server answered with status {status}")
