"""Processes a body of the Responses API, which may continue stored responses."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from vlmkit.errors import PromptTooLong, RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.types.request import Request as RunnerRequest
from vlmkit_server.apis.openai_responses.conversation import (
    EARLIER,
    Body,
    conversation_of,
    resolve,
)
from vlmkit_server.apis.openai_responses.items import StoredItem
from vlmkit_server.apis.openai_responses.store import ResponseStore, Turn
from vlmkit_server.apis.openai_responses.truncation import Truncated, truncate, without_clamping
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.exchange.named_errors import media_names, naming_fields
from vlmkit_server.interfaces.conversation import Conversation

T = TypeVar("T")


class Processed(NamedTuple, Generic[T]):
    """The result of processing a body.

    Attributes:
        result: the result of the work.
        request: the request that the work was done for.
        conversation: the conversation that the request was made of.
        previous: the turn that the body continues, if it continues one.
        num_truncated: the number of items that were left out.
        media: the paths that errors about its images and files name.
    """

    result: T
    request: RunnerRequest
    conversation: Conversation
    previous: Turn | None
    num_truncated: int
    media: Sequence[str | None]


async def process(
    exchange: Exchange,
    store: ResponseStore,
    body: Body,
    runner: Runner,
    work: Callable[[RunnerRequest, Conversation], Awaitable[T]],
    *,
    request_id: str = "",
    answers: bool = True,
    light: bool = False,
) -> Processed[T]:
    """Make a request of a body and the turns that it continues, and do some work with it.

    If the prompt is too long and the body allows truncation, the work is repeated with a shorter
    conversation.

    Args:
        exchange: the HTTP request.
        store: the stored responses.
        body: the body.
        runner: the runner of the model.
        work: does the work; gets the request and the conversation that it was made of.
        request_id: the id of the request.
        answers: whether the work is an answer, which may call tools.
        light: whether to read only the sizes of images.

    Raises:
        RequestError: a field is wrong; the error names it.
    """
    previous = _resolved(exchange, store, body, runner)
    conversation, num_items = conversation_of(body, previous.items() if previous else ())
    with naming_fields(conversation.field_of):
        request = await exchange.request(conversation, runner, request_id, light=light)
        if answers:
            exchange.report_unenforced_tools(conversation, runner.facts)
        full_request = without_clamping(request, runner) if body.truncation == "auto" else request
        truncated = Truncated(full_request)
        try:
            result = await work(full_request, conversation)
        except PromptTooLong:
            shortened = await truncate(full_request, runner) if body.truncation == "auto" else None
            if shortened is None and full_request is request:
                raise
            truncated = shortened or Truncated(request)
            result = await _with_original_indices(
                truncated, request, work(truncated.request, conversation)
            )

    def field_of(error: RequestError) -> str | None:
        truncated.restore_index(error, request)
        return conversation.field_of(error)

    media = media_names(truncated.request, field_of)
    num_truncated = sum(num_items[number] for number in truncated.left_out)
    return Processed(result, truncated.request, conversation, previous, num_truncated, media)


def _resolved(exchange: Exchange, store: ResponseStore, body: Body, runner: Runner) -> Turn | None:
    """Return the turn that a body continues, and replace references in the body by stored items.

    Raises:
        RequestError: a response or an item is not stored, or they are too large together.
    """
    owner, previous = exchange.caller.owner, None
    if body.previous_response_id is not None:
        previous = store.turn(body.previous_response_id, owner)
    max_bytes = exchange.service.settings.max_body_bytes
    num_bytes = previous.num_whole_bytes if previous else 0

    def find(item_id: str) -> StoredItem:
        nonlocal num_bytes
        item = store.item(item_id, owner)
        num_bytes += len(item.content)
        _check_size(num_bytes, max_bytes, runner)
        return item

    _check_size(num_bytes, max_bytes, runner)
    resolve(body, find)
    exchange.count_bytes(num_bytes)
    return previous


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
