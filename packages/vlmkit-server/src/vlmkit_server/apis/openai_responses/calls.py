"""Answers bodies of the Responses API: whole, as a stream, or in the background.

A body is translated to the chat API, and the answer to items and events of this API.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from litestar import Request
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send
from msgspec.structs import replace

from vlmkit.errors import RequestError, VlmkitError
from vlmkit.interfaces.runner import AnswerStream
from vlmkit.types.completion import Completion
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request as RunnerRequest
from vlmkit_server.apis.openai_chat.answer import logprobs_of
from vlmkit_server.apis.openai_chat.convert import Converter
from vlmkit_server.apis.openai_chat.tool_loop import (
    ToolLoop,
    check_server_tool_conflicts,
    start_tool_loop,
)
from vlmkit_server.apis.openai_chat.wire import ChatRequest
from vlmkit_server.apis.openai_responses.answer import (
    ResponseBodies,
    ResponseHead,
    output_items,
    output_items_of_tool_loop,
    response_head,
)
from vlmkit_server.apis.openai_responses.background import run_in_background
from vlmkit_server.apis.openai_responses.conversation import ConversationCall
from vlmkit_server.apis.openai_responses.event_log import EventLog
from vlmkit_server.apis.openai_responses.events import ExecutedCallEvents, ResponseEvents
from vlmkit_server.apis.openai_responses.items import (
    OutputItem,
    new_id,
    stored_input,
    stored_output,
)
from vlmkit_server.apis.openai_responses.namespaces import names_of
from vlmkit_server.apis.openai_responses.sse_replay import SseReplay
from vlmkit_server.apis.openai_responses.store import ResponseStore, Turn
from vlmkit_server.apis.openai_responses.truncation import check_fits
from vlmkit_server.apis.openai_responses.wire import (
    INPUT_TOKENS,
    RESPONSES,
    InputTokens,
    InputTokensRequest,
    ResponsesRequest,
)
from vlmkit_server.exchange.background import BackgroundWork
from vlmkit_server.exchange.full_response import WholeAnswer
from vlmkit_server.exchange.named_errors import AnswerReader, naming_media
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.errors import Overloaded


class CountCall(ConversationCall[InputTokensRequest]):
    """Counts the tokens of one conversation."""

    def __init__(
        self,
        request: Request[Any, Any, Any],
        service: Service,
        converter: Converter,
        store: ResponseStore,
    ) -> None:
        super().__init__(request, service, INPUT_TOKENS, converter, store)

    async def start(self, body: InputTokensRequest) -> ASGIApp:
        """Tokenize the prompt of the conversation and return its number of tokens."""
        runner = await self.runner(body.model)

        async def count_tokens(request: RunnerRequest, _: ChatRequest) -> PromptTokens:
            tokens = await runner.atokenize(request)
            if body.truncation == "auto":
                check_fits(request, tokens, runner)
            return tokens

        tokens = (await self.process(body, runner, "", count_tokens, answers=False)).result
        content = msgspec.json.encode(InputTokens(len(tokens.token_ids)))
        return ASGIResponse(body=content, headers=self.headers)


class CreateCall(ConversationCall[ResponsesRequest]):
    """Answers one conversation."""

    stores_streamed_answers = True

    def __init__(
        self,
        request: Request[Any, Any, Any],
        service: Service,
        converter: Converter,
        store: ResponseStore,
        detached: BackgroundWork,
    ) -> None:
        super().__init__(request, service, RESPONSES, converter, store)
        self._detached = detached

    async def start(self, body: ResponsesRequest) -> ASGIApp:
        """Submit the request; its answer is returned, streamed, or retrieved later."""
        runner = await self.runner(body.model)
        is_stored = self._is_stored(body)
        response_id = new_id("resp")

        async def submit(request: RunnerRequest, chat: ChatRequest) -> AnswerStream | ToolLoop:
            check_server_tool_conflicts(chat, request)
            if not body.server_tools:
                return await runner.asubmit(request)
            max_calls = body.max_tool_calls
            return await start_tool_loop(
                chat, request, runner, self.service, shows_calls=True, max_calls=max_calls
            )

        processed = await self.process(body, runner, response_id, submit)
        stream, params = processed.result, processed.request.params or runner.facts.defaults
        logprobs = logprobs_of(runner, params) if params.logprobs else None
        num_truncated = processed.num_truncated
        head = response_head(
            body, self.model, params, response_id, is_stored=is_stored, num_truncated=num_truncated
        )
        bodies = partial(
            ResponseBodies,
            has_transforms=bool(body.return_image_transforms),
            has_places=bool(body.return_places),
        )
        answer = _ResponseRecord(bodies(head), None)
        if is_stored:
            items = stored_input(body.input)
            turn = Turn(self.caller.owner, items, processed.previous, self.caller.account)
            answer = self._store_initial(head, bodies, turn, stream)

        names = names_of(body.tools)

        def encode_whole(completion: Completion) -> list[bytes]:
            if isinstance(stream, ToolLoop):
                output = output_items_of_tool_loop(stream.rounds)
            else:
                output = output_items(completion, logprobs, runner.token_bytes, names)
            return [answer.end(output, completion)]

        hides_sizes = bool(body.stream_options and body.stream_options.include_obfuscation)
        events = (ExecutedCallEvents if body.server_tools else ResponseEvents)(
            answer.bodies,
            logprobs=logprobs,
            num_reasoning_tokens=lambda: stream.usage.reasoning_tokens,
            store=answer.finish,
            names=names,
        )
        named = naming_media(stream, processed.media)
        if answer.log is not None:
            await self._start_background(named, events, answer, answer.log)
            if body.stream:
                return SseReplay(
                    answer.log, -1, self.service, self.headers, hides_sizes=hides_sizes
                )
            return ASGIResponse(body=answer.bodies.initial(), headers=self.headers)
        if body.stream:
            app = self.stream_events(
                named, events, hides_sizes=hides_sizes, images_s=processed.images_s
            )
        else:
            app = WholeAnswer(named, encode_whole, self.service, self.headers, processed.images_s)
        return _with_cleanup(app, answer.abandon)

    def _is_stored(self, body: ResponsesRequest) -> bool:
        """Return whether the response is stored.

        Raises:
            RequestError: the body requires storage, which is disabled.
        """
        if body.background and body.store is False:
            raise RequestError("background needs store, to be looked for later", param="background")
        if self.store.is_off and (body.store or body.background):
            raise RequestError(
                "this server stores no responses",
                param="store" if body.store else "background",
                code="unsupported_value",
            )
        return body.store is not False and not self.store.is_off

    def _store_initial(
        self,
        head: ResponseHead,
        make_bodies: Callable[[ResponseHead], ResponseBodies],
        turn: Turn,
        stream: AnswerStream | ToolLoop,
    ) -> "_ResponseRecord":
        """Store a response that starts, if there is room for its input.

        Raises:
            Overloaded: a background response cannot be stored now.
            RequestError: a background response is too large to be stored.
        """
        bodies = make_bodies(head)
        log = EventLog(self.store.max_event_bytes) if head.background else None

        def stop() -> bytes:
            if log is not None:
                log.is_cancelled = True
            stream.abort()
            return bodies.cancelled()

        stop_background = stop if head.background else None
        try:
            if self.store.begin(head.id, bodies.initial(), turn, stop_background, log):
                return _ResponseRecord(bodies, self.store, log)
        except Overloaded:
            if head.background:  # it cannot be retrieved unless it is stored
                stream.abort()
                raise
        if head.background:
            stream.abort()
            raise RequestError(
                "there is no room to store a response of this size", param="background"
            )
        return _ResponseRecord(make_bodies(replace(head, store=False)), None)

    async def _start_background(
        self,
        stream: AnswerReader,
        events: ResponseEvents,
        answer: "_ResponseRecord",
        log: EventLog,
    ) -> None:
        """Continue an answer in the background, after the end of this call.

        Raises:
            VlmkitError: the server has no capacity for it.
        """
        leases = self.transfer_leases()
        work = run_in_background(
            stream,
            events,
            log,
            on_growth=partial(self.store.grow, answer.bodies.id),
            store_body=lambda body: answer.finish(body, ()),
            service=self.service,
            scope=self._request.scope,
            leases=leases,
        )
        try:
            self._detached.start(work, self.caller.account)
        except VlmkitError:
            await leases.aclose()
            answer.abandon()
            raise


class _ResponseRecord:
    """A response in progress, and where it is stored.

    Args:
        bodies: encodes the response.
        store: the store, if the response is stored.
        log: the event log, if the response runs in the background.
    """

    def __init__(
        self, bodies: ResponseBodies, store: ResponseStore | None, log: EventLog | None = None
    ) -> None:
        self.bodies = bodies
        self.log = log
        self._store = store

    def end(self, output: Sequence[OutputItem], completion: Completion) -> bytes:
        """Return the body of a whole answer, and store it."""
        (choice,) = completion.choices
        body = self.bodies.final(choice.finish_reason, output, completion.usage, choice.places)
        self.finish(body, output)
        return body

    def finish(self, body: bytes, output: Sequence[OutputItem]) -> None:
        """Store the final body and the items."""
        if self._store is not None:
            self._store.finish(self.bodies.id, body, stored_output(output))

    def abandon(self) -> None:
        """Remove the response from the store, unless it has ended."""
        if self._store is not None:
            self._store.abandon(self.bodies.id)


def _with_cleanup(app: ASGIApp, end: Callable[[], None]) -> ASGIApp:
    """Return a response that calls a function at its end, even if it fails."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        finally:
            end()

    return respond
