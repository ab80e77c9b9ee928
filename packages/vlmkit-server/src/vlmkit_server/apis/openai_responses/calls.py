"""Answers bodies of the Responses API: whole, as a stream, or in the background."""

from collections.abc import Callable, Sequence
from functools import partial

from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send
from msgspec.structs import replace

from vlmkit.errors import RequestError, VlmkitError
from vlmkit.interfaces.runner import AnswerStream
from vlmkit.types.completion import Completion
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request as RunnerRequest
from vlmkit_server.apis.openai_chat.answer import logprobs_of
from vlmkit_server.apis.openai_chat.rendering import (
    InputTokens,
    Rendered,
    check_no_server_tools,
    rendered_pieces,
)
from vlmkit_server.apis.openai_responses.answer import (
    ResponseBodies,
    ResponseHead,
    output_items,
    output_items_of_tool_loop,
    response_head,
)
from vlmkit_server.apis.openai_responses.background import run_in_background
from vlmkit_server.apis.openai_responses.event_log import EventLog
from vlmkit_server.apis.openai_responses.events import ExecutedCallEvents, ResponseEvents
from vlmkit_server.apis.openai_responses.items import (
    OutputItem,
    new_id,
    stored_input,
    stored_output,
)
from vlmkit_server.apis.openai_responses.namespaces import names_of
from vlmkit_server.apis.openai_responses.processing import process
from vlmkit_server.apis.openai_responses.sse_replay import SseReplay
from vlmkit_server.apis.openai_responses.store import ResponseStore, Turn
from vlmkit_server.apis.openai_responses.truncation import check_fits
from vlmkit_server.apis.openai_responses.wire import (
    InputTokensRequest,
    RenderResponsesRequest,
    ResponsesRequest,
)
from vlmkit_server.conversation.exchange import Answer, Exchange
from vlmkit_server.conversation.tool_loop import ToolLoop
from vlmkit_server.exchange.background import BackgroundWork
from vlmkit_server.exchange.named_errors import AnswerReader, naming_media
from vlmkit_server.http.errors import Overloaded
from vlmkit_server.interfaces.conversation import AnswerHead, Conversation


class ResponsesHandlers:
    """Answers, counts and renders conversations.

    Args:
        store: the stored responses.
        detached: runs responses in the background.
    """

    def __init__(self, store: ResponseStore, detached: BackgroundWork) -> None:
        self._store = store
        self._detached = detached

    async def count(self, exchange: Exchange, body: InputTokensRequest) -> ASGIApp:
        """Return how many tokens a conversation has."""
        runner = await exchange.lease(body.model)

        async def count_tokens(request: RunnerRequest, _: Conversation) -> PromptTokens:
            tokens = await runner.atokenize(request)
            if body.truncation == "auto":
                check_fits(request, tokens, runner)
            return tokens

        counted = await process(exchange, self._store, body, runner, count_tokens, answers=False)
        return exchange.json(InputTokens(len(counted.result.token_ids)))

    async def render(self, exchange: Exchange, body: RenderResponsesRequest) -> ASGIApp:
        """Return the prompt of a conversation of the Responses API."""
        runner = await exchange.lease(body.model)

        async def prompt(request: RunnerRequest, conversation: Conversation) -> Rendered:
            check_no_server_tools(conversation)
            tokens = await runner.atokenize(request)
            if body.truncation == "auto":
                check_fits(request, tokens, runner)
            return Rendered.of(
                exchange.model, request, tokens, runner.facts, None, stream=bool(body.stream)
            )

        processed = await process(
            exchange,
            self._store,
            body,
            runner,
            prompt,
            request_id=exchange.head("resp", runner).id,
            answers=False,
            light=bool(body.light),
        )
        return exchange.pieces(partial(rendered_pieces, processed.result, runner))

    async def create(self, exchange: Exchange, body: ResponsesRequest) -> ASGIApp:
        """Answer a conversation."""
        runner = await exchange.lease(body.model)
        is_stored = _is_stored(body, self._store)
        response_id = new_id("resp")

        async def submit(
            request: RunnerRequest, conversation: Conversation
        ) -> AnswerStream | ToolLoop:
            max_calls = body.max_tool_calls
            return await exchange.submit(
                conversation, request, runner, shows_calls=True, max_calls=max_calls
            )

        processed = await process(
            exchange, self._store, body, runner, submit, request_id=response_id
        )
        stream, params = processed.result, processed.request.params or runner.facts.defaults
        head = response_head(
            body,
            exchange.model,
            params,
            response_id,
            is_stored=is_stored,
            num_truncated=processed.num_truncated,
        )
        extras = processed.conversation.extras
        record = ResponseRecord(ResponseBodies(head, extras), None)
        if is_stored:
            items = stored_input(body.input)
            turn = Turn(exchange.caller.owner, items, processed.previous, exchange.caller.account)
            record = self._store_initial(head, partial(ResponseBodies, extras=extras), turn, stream)
        answer = Answer(
            AnswerHead(response_id, head.created_at, exchange.model, ""),
            runner,
            params,
            stream,
            naming_media(stream, processed.media),
            extras,
            images_s=exchange.images_s,
        )
        del processed  # the response must not keep the request and its images in memory
        return await self._respond(exchange, body, answer, record)

    async def _respond(
        self,
        exchange: Exchange,
        body: ResponsesRequest,
        answer: Answer,
        record: "ResponseRecord",
    ) -> ASGIApp:
        """Return the response: the whole answer, a stream, or what is known of it now."""
        stream, runner, names = answer.source, answer.runner, names_of(body.tools)
        logprobs = logprobs_of(runner, answer.params) if answer.params.logprobs else None

        def encode_whole(completion: Completion) -> list[bytes]:
            if isinstance(stream, ToolLoop):
                output = output_items_of_tool_loop(stream.rounds)
            else:
                output = output_items(completion, logprobs, runner.token_bytes, names)
            return [record.end(output, completion)]

        hides_sizes = bool(body.stream_options and body.stream_options.include_obfuscation)
        events = (ExecutedCallEvents if body.server_tools else ResponseEvents)(
            record.bodies,
            logprobs=logprobs,
            num_reasoning_tokens=lambda: stream.usage.reasoning_tokens,
            store=record.finish,
            names=names,
        )
        if record.log is not None:
            await self._start_background(exchange, answer.reader, events, record, record.log)
            if body.stream:
                return SseReplay(
                    record.log, -1, exchange.service, exchange.headers, hides_sizes=hides_sizes
                )
            return ASGIResponse(body=record.bodies.initial(), headers=exchange.headers)
        if body.stream:
            app = exchange.stream(answer, events, hides_sizes=hides_sizes)
        else:
            app = exchange.whole(answer, encode_whole)
        return _with_cleanup(app, record.abandon)

    def _store_initial(
        self,
        head: ResponseHead,
        make_bodies: Callable[[ResponseHead], ResponseBodies],
        turn: Turn,
        stream: AnswerStream | ToolLoop,
    ) -> "ResponseRecord":
        """Store a response that starts, if there is room for its input.

        Raises:
            Overloaded: a background response cannot be stored now.
            RequestError: a background response is too large to be stored.
        """
        bodies = make_bodies(head)
        log = EventLog(self._store.max_event_bytes) if head.background else None

        def stop() -> bytes:
            if log is not None:
                log.is_cancelled = True
            stream.abort()
            return bodies.cancelled()

        stop_background = stop if head.background else None
        try:
            if self._store.begin(head.id, bodies.initial(), turn, stop_background, log):
                return ResponseRecord(bodies, self._store, log)
        except Overloaded:
            if head.background:  # it cannot be retrieved unless it is stored
                stream.abort()
                raise
        if head.background:
            stream.abort()
            raise RequestError(
                "there is no room to store a response of this size", param="background"
            )
        return ResponseRecord(make_bodies(replace(head, store=False)), None)

    async def _start_background(
        self,
        exchange: Exchange,
        stream: AnswerReader,
        events: ResponseEvents,
        record: "ResponseRecord",
        log: EventLog,
    ) -> None:
        """Continue an answer in the background, after the end of this exchange.

        Raises:
            VlmkitError: the server has no capacity for it.
        """
        leases = exchange.admission.transfer()
        work = run_in_background(
            stream,
            events,
            log,
            on_growth=partial(self._store.grow, record.bodies.id),
            store_body=lambda body: record.finish(body, ()),
            service=exchange.service,
            scope=exchange.http.scope,
            leases=leases,
        )
        try:
            self._detached.start(work, exchange.caller.account)
        except VlmkitError:
            await leases.aclose()
            record.abandon()
            raise


def _is_stored(body: ResponsesRequest, store: ResponseStore) -> bool:
    """Return whether the response is stored.

    Raises:
        RequestError: the body requires storage, which is disabled.
    """
    if body.background and body.store is False:
        raise RequestError("background needs store, to be looked for later", param="background")
    if store.is_off and (body.store or body.background):
        raise RequestError(
            "this server stores no responses",
            param="store" if body.store else "background",
            code="unsupported_value",
        )
    return body.store is not False and not store.is_off


class ResponseRecord:
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
