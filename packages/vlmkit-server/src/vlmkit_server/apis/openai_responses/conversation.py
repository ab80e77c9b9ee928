"""Calls with a conversation of the Responses API, which may continue stored responses."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from litestar import Request

from vlmkit.errors import PromptTooLong, RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.types.request import Request as RunnerRequest
from vlmkit_server.apis.openai_chat.call import MessagesCall
from vlmkit_server.apis.openai_chat.convert import Converter
from vlmkit_server.apis.openai_chat.translation import naming_fields
from vlmkit_server.apis.openai_chat.wire import ChatRequest
from vlmkit_server.apis.openai_responses.items import StoredItem
from vlmkit_server.apis.openai_responses.store import ResponseStore, Turn
from vlmkit_server.apis.openai_responses.to_chat import EARLIER, Body, as_chat, resolve
from vlmkit_server.apis.openai_responses.truncation import Truncated, truncate, without_clamping
from vlmkit_server.exchange.named_errors import Names, media_names
from vlmkit_server.exchange.service import Service
from vlmkit_server.wire.body import BodyReader

EFFORT_FIELD = "reasoning.effort"
DETAIL_FIELD = "input.content.detail"

B = TypeVar("B", bound=msgspec.Struct)
T = TypeVar("T")


class Processed(NamedTuple, Generic[T]):
    """The result of processing a body.

    Attributes:
        result: the result of the work.
        request: the request that the work was done for.
        previous: the turn that the body continues, if it continues one.
        images_s: how long fetching and checking the images took, in seconds.
        num_truncated: the number of items that were left out.
        media: the fields that errors about its images and files name.
    """

    result: T
    request: RunnerRequest
    previous: Turn | None
    images_s: float
    num_truncated: int
    media: Names


class ConversationCall(MessagesCall[B]):
    """A call whose body may continue stored responses.

    Args:
        request: the HTTP request.
        service: the models and the admission of requests.
        reader: decodes the body.
        converter: converts messages for a runner.
        store: the stored responses.
    """

    def __init__(
        self,
        request: Request[Any, Any, Any],
        service: Service,
        reader: BodyReader[B],
        converter: Converter,
        store: ResponseStore,
    ) -> None:
        super().__init__(request, service, reader, converter)
        self.store = store

    async def process(
        self,
        body: Body,
        runner: Runner,
        request_id: str,
        work: Callable[[RunnerRequest, ChatRequest], Awaitable[T]],
        *,
        answers: bool = True,
        light: bool = False,
    ) -> Processed[T]:
        """Convert a body and the turns that it continues, and do some work with the request.

        If the prompt is too long and the body allows truncation, the work is repeated with a
        shorter conversation.

        Args:
            body: the body.
            runner: the runner of the model.
            request_id: the id of the request.
            work: does the work; gets the request and the chat that it was made from.
            answers: whether the work is an answer, which may call tools.
            light: whether to read only the sizes of images.

        Raises:
            RequestError: a field is wrong; the error names it.
        """
        previous = None
        if body.previous_response_id is not None:
            previous = self.store.turn(body.previous_response_id, self.caller.owner)
        max_bytes = self.service.settings.max_body_bytes
        num_bytes = previous.num_whole_bytes if previous else 0

        def find(item_id: str) -> StoredItem:
            nonlocal num_bytes
            item = self.store.item(item_id, self.caller.owner)
            num_bytes += len(item.content)
            _check_size(num_bytes, max_bytes, runner)
            return item

        _check_size(num_bytes, max_bytes, runner)
        resolve(body, find)
        self.count_bytes(num_bytes)
        translation = as_chat(body, previous.items() if previous else ())
        with naming_fields(translation.field_of):
            request, images_s = await self.prepare_request(
                translation.chat,
                runner.facts,
                request_id,
                effort=EFFORT_FIELD,
                detail=DETAIL_FIELD,
                light=light,
            )
            if answers:
                self.report_unenforced_tools(translation.chat, runner.facts)
            full_request = (
                without_clamping(request, runner) if body.truncation == "auto" else request
            )
            truncated = Truncated(full_request)
            try:
                result = await work(full_request, translation.chat)
            except PromptTooLong:
                shortened = (
                    await truncate(full_request, runner) if body.truncation == "auto" else None
                )
                if shortened is None and full_request is request:
                    raise
                truncated = shortened or Truncated(request)
                result = await _with_original_indices(
                    truncated, request, work(truncated.request, translation.chat)
                )

        def field_of(error: RequestError) -> str | None:
            truncated.restore_index(error, request)
            return translation.field_of(error)

        names = media_names(truncated.request, field_of)
        num_truncated = sum(translation.num_items[number] for number in truncated.left_out)
        return Processed(result, truncated.request, previous, images_s, num_truncated, names)


async def _with_original_indices(
    truncated: Truncated, full_request: RunnerRequest, work: Awaitable[T]
) -> T:
    """Wait for work on a truncated request; its errors count images of the full request."""
    try:
        return await work
    except RequestError as error:
        truncated.restore_index(error, full_request)
        raise


def _check_size(num_bytes: int, max_bytes: int, runner: Runner) -> None:
    """Refuse to continue a conversation that is larger than a body may be."""
    if num_bytes > max_bytes:
        raise PromptTooLong(
            runner.facts.limits.max_sequence_tokens,
            f"what is stored of the conversation is over {max_bytes} bytes",
            param=EARLIER,
        )
