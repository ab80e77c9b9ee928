"""How bodies of the Responses API are answered: at once, as a stream, or in the background.

A body is translated into one of the chat API; what comes of that is told in items and events.
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
from vlmkit.types.request import Request as Asked
from vlmkit_server.apis.openai_chat.answer import logprobs_of
from vlmkit_server.apis.openai_chat.convert import Converter
from vlmkit_server.apis.openai_chat.tool_loop import ToolLoop, begun, check_alone
from vlmkit_server.apis.openai_chat.wire import ChatRequest
from vlmkit_server.apis.openai_responses.answer import (
    ResponseBodies,
    ResponseHead,
    output_of,
    output_of_rounds,
    response_head,
)
from vlmkit_server.apis.openai_responses.background import answered
from vlmkit_server.apis.openai_responses.conversation import ConversationCall
from vlmkit_server.apis.openai_responses.event_log import EventLog
from vlmkit_server.apis.openai_responses.events import ResponseEvents
from vlmkit_server.apis.openai_responses.executed_call_events import ExecutedCallEvents
from vlmkit_server.apis.openai_responses.items import OutputItem, kept_input, kept_output, new_id
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
from vlmkit_server.exchange.obfuscation import Obfuscated
from vlmkit_server.exchange.service import Service
from vlmkit_server.exchange.streaming import EventStream
from vlmkit_server.http.errors import Overloaded


class CountCall(ConversationCall[InputTokensRequest]):
    """Counts one conversation."""

    def __init__(
        self,
        request: Request[Any, Any, Any],
        service: Service,
        converter: Converter,
        store: ResponseStore,
    ) -> None:
        super().__init__(request, service, INPUT_TOKENS, converter, store)

    async def start(self, body: InputTokensRequest) -> ASGIApp:
        """Let the runner read the prompt that the conversation would be."""
        runner = await self.runner(body.model)

        async def counted(asked: Asked, _: ChatRequest) -> PromptTokens:
            found = await runner.atokenize(asked)
            if body.truncation == "auto":
                check_fits(asked, found, runner)
            return found

        found = (await self.ask(body, runner, "", counted, answers=False)).result
        content = msgspec.json.encode(InputTokens(len(found.token_ids)))
        return ASGIResponse(body=content, headers=self.headers)


class CreateCall(ConversationCall[ResponsesRequest]):
    """Answers one conversation."""

    keeps_answers = True

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
        """Submit the request; its answer is streamed, waited for, or looked for later."""
        runner = await self.runner(body.model)
        is_kept = self._is_kept(body)
        response_id = new_id("resp")

        async def submitted(asked: Asked, chat: ChatRequest) -> AnswerStream | ToolLoop:
            check_alone(chat, asked)
            if not body.server_tools:
                return await runner.asubmit(asked)
            most = body.max_tool_calls
            return await begun(chat, asked, runner, self.service, shows_calls=True, max_calls=most)

        done = await self.ask(body, runner, response_id, submitted)
        stream, params = done.result, done.request.params or runner.facts.defaults
        logprobs = logprobs_of(runner, params) if params.logprobs else None
        num_truncated = done.num_truncated
        head = response_head(
            body, self.model, params, response_id, is_kept=is_kept, num_truncated=num_truncated
        )
        bodies = partial(
            ResponseBodies,
            has_transforms=bool(body.return_image_transforms),
            has_places=bool(body.return_places),
        )
        answer = _Answer(bodies(head), None)
        if is_kept:
            said = kept_input(body.input)
            turn = Turn(self.caller.owner, said, done.before, self.caller.account)
            answer = self._begun(head, bodies, turn, stream)

        names = names_of(body.tools)

        def whole(completion: Completion) -> list[bytes]:
            if isinstance(stream, ToolLoop):
                output = output_of_rounds(stream.rounds)
            else:
                output = output_of(completion, logprobs, runner.token_bytes, names)
            return [answer.end(output, completion)]

        hides = bool(body.stream_options and body.stream_options.include_obfuscation)
        events = (ExecutedCallEvents if body.server_tools else ResponseEvents)(
            answer.bodies,
            logprobs=logprobs,
            num_reasoning_tokens=lambda: stream.usage.reasoning_tokens,
            keep=answer.keep,
            names=names,
        )
        named = naming_media(stream, done.media)
        if answer.log is not None:
            await self._detach(named, events, answer, answer.log)
            if body.stream:
                return SseReplay(answer.log, -1, self.service, self.headers, hides_sizes=hides)
            return ASGIResponse(body=answer.bodies.begun(), headers=self.headers)
        if body.stream:
            told = Obfuscated(events) if hides else events
            app: ASGIApp = EventStream(named, told, self.service, self.headers, done.images_s)
        else:
            app = WholeAnswer(named, whole, self.service, self.headers, done.images_s)
        return _ending(app, answer.abandon)

    def _is_kept(self, body: ResponsesRequest) -> bool:
        """Tell whether the response is to be stored.

        Raises:
            RequestError: it must be, and cannot.
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

    def _begun(
        self,
        head: ResponseHead,
        made: Callable[[ResponseHead], ResponseBodies],
        turn: Turn,
        stream: AnswerStream | ToolLoop,
    ) -> "_Answer":
        """Store the begin of an answer, if there is room for what was said."""
        bodies = made(head)
        log = EventLog(self.store.max_event_bytes) if head.background else None

        def stop() -> bytes:
            if log is not None:
                log.is_cancelled = True
            stream.abort()
            return bodies.cancelled()

        stopping = stop if head.background else None
        try:
            if self.store.begin(head.id, bodies.begun(), turn, stopping, log):
                return _Answer(bodies, self.store, log)
        except Overloaded:
            if head.background:  # which is of no use where it is not kept
                stream.abort()
                raise
        if head.background:
            stream.abort()
            raise RequestError(
                "there is no room to store a response of this size", param="background"
            )
        return _Answer(made(replace(head, store=False)), None)

    async def _detach(
        self,
        stream: AnswerReader,
        events: ResponseEvents,
        answer: "_Answer",
        log: EventLog,
    ) -> None:
        """Let an answer go on without this call.

        Raises:
            VlmkitError: the server is full.
        """
        lease = self.hand_on()
        work = answered(
            stream,
            events,
            log,
            grown=partial(self.store.grow, answer.bodies.id),
            keep=lambda body: answer.keep(body, ()),
            service=self.service,
            scope=self._request.scope,
            lease=lease,
        )
        try:
            self._detached.start(work, self.caller.account)
        except VlmkitError:
            await lease.aclose()
            answer.abandon()
            raise


class _Answer:
    """One response on its way.

    Args:
        bodies: encodes it.
        store: where it is stored, if it is.
        log: of one in the background.
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
        body = self.bodies.ended(choice.finish_reason, output, completion.usage, choice.places)
        self.keep(body, output)
        return body

    def keep(self, body: bytes, output: Sequence[OutputItem]) -> None:
        """Store what it has become."""
        if self._store is not None:
            self._store.finish(self.bodies.id, body, kept_output(output))

    def abandon(self) -> None:
        """Forget it, unless it is over."""
        if self._store is not None:
            self._store.abandon(self.bodies.id)


def _ending(app: ASGIApp, end: Callable[[], None]) -> ASGIApp:
    """Return a response that ends with some work, whatever comes of it."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        finally:
            end()

    return respond
