"""Calls with a conversation of the Responses API, which may build upon what is stored."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from litestar import Request

from vlmkit.errors import PromptTooLong, RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.types.request import Request as Asked
from vlmkit_server.apis.openai_chat.call import MessagesCall
from vlmkit_server.apis.openai_chat.convert import Converter
from vlmkit_server.apis.openai_chat.wire import ChatRequest
from vlmkit_server.apis.openai_responses.items import StoredItem
from vlmkit_server.apis.openai_responses.store import ResponseStore, Turn
from vlmkit_server.apis.openai_responses.to_chat import EARLIER, Body, as_chat, resolve
from vlmkit_server.apis.openai_responses.truncation import Truncated, truncated, with_whole_answer
from vlmkit_server.exchange.named_errors import Names, media_names
from vlmkit_server.exchange.service import Service
from vlmkit_server.wire.body import BodyReader

EFFORT = "reasoning.effort"
DETAIL = "input.content.detail"

B = TypeVar("B", bound=msgspec.Struct)
T = TypeVar("T")


class Done(NamedTuple, Generic[T]):
    """What came of a body.

    Attributes:
        result: what the runner returned.
        request: what it was asked.
        before: the turn that is answered upon, if there is one.
        images_s: how long fetching and checking the images took.
        num_truncated: how many items of the conversation were left out.
        media: what errors are to call its images and files.
    """

    result: T
    request: Asked
    before: Turn | None
    images_s: float
    num_truncated: int
    media: Names


class ConversationCall(MessagesCall[B]):
    """A call whose body may build upon what is stored.

    Args:
        request: what was sent.
        service: the models, and whether work is taken.
        reader: reads the body.
        converter: makes what a runner takes of messages.
        store: responses that may be referred to.
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

    async def ask(
        self,
        body: Body,
        runner: Runner,
        request_id: str,
        work: Callable[[Asked, ChatRequest], Awaitable[T]],
        *,
        answers: bool = True,
        light: bool = False,
    ) -> Done[T]:
        """Let a runner work on a body and all that it builds upon.

        Args:
            body: what was sent.
            runner: who works.
            request_id: what the request is called.
            work: what it does.
            answers: whether that is an answer, which may call tools.
            light: whether no more of images is wanted than their sizes.

        Raises:
            RequestError: names the field that is wrong.
        """
        before = None
        if body.previous_response_id is not None:
            before = self.store.turn(body.previous_response_id, self.caller.owner)
        most = self.service.settings.max_body_bytes
        num_bytes = before.num_whole_bytes if before else 0

        def find(item_id: str) -> StoredItem:
            nonlocal num_bytes
            item = self.store.item(item_id, self.caller.owner)
            num_bytes += len(item.content)
            _check_size(num_bytes, most, runner)
            return item

        _check_size(num_bytes, most, runner)
        resolve(body, find)
        self.hold(num_bytes)
        said = as_chat(body, before.items() if before else ())
        try:
            asked, images_s = await self.asked(
                said.chat, runner.facts, request_id, effort=EFFORT, detail=DETAIL, light=light
            )
            if answers:
                self.note_tools(said.chat, runner.facts)
            whole = with_whole_answer(asked, runner) if body.truncation == "auto" else asked
            kept = Truncated(whole)
            try:
                result = await work(whole, said.chat)
            except PromptTooLong:
                shorter = await truncated(whole, runner) if body.truncation == "auto" else None
                if shorter is None and whole is asked:
                    raise
                kept = shorter or Truncated(asked)
                result = await _blaming(kept, asked, work(kept.request, said.chat))
        except RequestError as error:
            error.param = said.field_of(error)
            raise

        def field_of(error: RequestError) -> str | None:
            kept.blame(error, asked)
            return said.field_of(error)

        names = media_names(kept.request, field_of)
        num_truncated = sum(said.num_items[number] for number in kept.left_out)
        return Done(result, kept.request, before, images_s, num_truncated, names)


async def _blaming(kept: Truncated, whole: Asked, work: Awaitable[T]) -> T:
    """Wait for some work on what is kept of a request, whose errors are about the whole."""
    try:
        return await work
    except RequestError as error:
        kept.blame(error, whole)
        raise


def _check_size(num_bytes: int, most: int, runner: Runner) -> None:
    """Refuse to build upon more than could be sent."""
    if num_bytes > most:
        raise PromptTooLong(
            runner.facts.limits.max_sequence_tokens,
            f"what is stored of the conversation is over {most} bytes",
            param=EARLIER,
        )
