"""One request with a body, from its admission to the last byte of its answer.

An API's handler gets an :class:`Exchange` and the decoded body, and returns the response.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send

from vlmkit._version import __version__
from vlmkit.errors import QueueFull
from vlmkit.interfaces.runner import CONSTRAINT, AnswerStream, Runner, RunnerFacts
from vlmkit.running.prompting.request_fields import refusal
from vlmkit.types.completion import Completion
from vlmkit.types.request import Request as RunnerRequest
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.admission.admission import Admission, admission_of
from vlmkit_server.admission.bodies import Body
from vlmkit_server.conversation.host import Host
from vlmkit_server.conversation.prompt_scorer import PromptScorer
from vlmkit_server.conversation.request_builder import DETAIL, EFFORT, RequestBuilder
from vlmkit_server.conversation.tool_loop import ToolLoop
from vlmkit_server.exchange.demand_headers import UNCONSTRAINED_HEADER, DemandHeaders
from vlmkit_server.exchange.full_response import Ending, PiecedAnswer, WholeAnswer
from vlmkit_server.exchange.named_errors import AnswerReader, naming_fields, naming_media
from vlmkit_server.exchange.obfuscation import Obfuscated
from vlmkit_server.exchange.service import Service
from vlmkit_server.exchange.streaming import Chunks, Events, EventStream
from vlmkit_server.gather import in_order
from vlmkit_server.http.caller import Caller, caller_of
from vlmkit_server.http.errors import TooLate, Unavailable
from vlmkit_server.interfaces.api import Handler
from vlmkit_server.interfaces.conversation import NO_EXTRAS, AnswerHead, Conversation, Extras
from vlmkit_server.interfaces.model_info import ModelInfo
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.plain_prompts import (
    Plain,
    check_plain_size,
    plain_field,
    plain_fields,
    plain_names,
)
from vlmkit_server.wire.structure import is_light

B = TypeVar("B", bound=msgspec.Struct)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that a runner has started; it keeps neither the request nor its images in memory.

    Attributes:
        head: the fields that every object of the answer repeats.
        runner: the runner, which decodes tokens.
        params: the sampling parameters.
        source: the stream of the runner, or the tool loop that executes calls.
        reader: reads the stream; its errors name the fields of the body.
        extras: what the answer reports besides its text.
        scores: the scored tokens of the prompt, if the client requests them.
        images_s: how long fetching and checking the images took, in seconds.
    """

    head: AnswerHead
    runner: Runner
    params: SamplingParams
    source: AnswerStream | ToolLoop
    reader: AnswerReader
    extras: Extras = NO_EXTRAS
    scores: list[Sample] = field(default_factory=list)
    images_s: float = 0.0


class Exchange:
    """One HTTP request, as the ASGI application of its response.

    The work runs here and not in the route handler of the framework, so that the request counts as
    admitted until the last byte is sent.

    Args:
        request: the HTTP request.
        host: the server's parts.
        reader: decodes the body; None if there is none.
        handler: answers the body.
        buffers_streams: whether a streamed answer is kept in memory as a whole, too.
        decodes: whether the handler gets the decoded body, and not its bytes.
        needs_json_type: whether every body must be declared as JSON.

    Attributes:
        http: the HTTP request.
        service: the state of the server, such as its models.
        admission: what the request may use, and holds until its end.
        builder: makes requests of conversations.
        caller: who sent the request.
        headers: headers of the response; set before it begins.
        model: the name of the model that the body requests.
        plugin_fields: the values of fields that plugins added. Once the model is known, those that
            it does not support are removed.
        images_s: how long fetching and checking the images took, in seconds.
        load_s: how long the request waited until its model was loaded, in seconds.
    """

    def __init__(
        self,
        request: Request[Any, Any, Any],
        host: Host,
        reader: BodyReader[Any] | None,
        handler: Handler,
        *,
        buffers_streams: bool = False,
        decodes: bool = True,
        needs_json_type: bool = True,
    ) -> None:
        self.http = request
        self.service: Service = host.service
        self.admission: Admission = admission_of(request.scope)
        self.builder: RequestBuilder = host.builder
        self.caller: Caller = caller_of(request)
        self.headers: dict[str, str] = {}
        self.plugin_fields: dict[str, Any] = {}
        self.model = ""
        self.images_s = self.load_s = 0.0
        self._decodes = decodes
        self._needs_json_type = needs_json_type
        self._buffers_streams = buffers_streams
        self._ignored: frozenset[str] = frozenset()
        self._reader = reader
        self._handler = handler
        self._sent: Body | None = None

    # The life of the request.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, start the request and send the answer."""
        try:
            response = await self._response(receive)
            await response(scope, receive, send)
        except (QueueFull, TooLate) as error:
            self.admission.set_retry_time(error)
            raise

    async def _response(self, receive: Receive) -> ASGIApp:
        """Read the body, and return the response to it."""
        if self._reader is None:  # it is admitted when it leases a model
            self.admission.buffers_answers = True
            return await self.admission.attend(self._handler(self, None), receive)
        self.admission.check()
        with self.admission.body() as sent:
            content = await sent.read_json(self.http, self._needs_json_type)
            self.admission.admit()  # a body that never arrives completely is not admitted
            body = await self.read_as(self._reader, content) if self._decodes else content
            self._sent = sent
            work = self._handler(self, body)
            del content, body  # large ones are not needed while the answer is generated
            return await self.admission.attend(work, receive)

    async def read_as(self, reader: BodyReader[B], content: bytes) -> B:
        """Decode a body, and report its ignored fields.

        Raises:
            RequestError: a field is wrong; the error names it.
        """
        names = self.service.request_fields
        body, ignored = await self.decoded(content, partial(reader.read, added=names))
        if names:
            self.plugin_fields = await self.decoded(content, partial(reader.added, names=names))
        self.report_ignored(ignored)
        if self._buffers_streams or not getattr(body, "stream", None):
            self.admission.buffers_answers = True
        return body

    async def decoded(self, content: bytes, decode: Callable[[bytes], T]) -> T:
        """Decode a body; a large one outside the event loop."""
        if is_light(content):
            return decode(content)
        return await self.service.offload.run(partial(decode, content), self.caller.account)

    # Models.

    @property
    def models(self) -> list[ModelInfo]:
        """The served models, in the operator's order."""
        return [
            ModelInfo(
                names=each.names,
                created_s=each.created,
                is_in_memory=each.is_in_memory,
                memory_bytes=each.memory_bytes,
                facts=each.facts,
            )
            for each in self.service.models.values()
        ]

    # Conversations.

    async def run(
        self, conversation: Conversation, kind: str, *, shows_calls: bool = False
    ) -> Answer:
        """Start to answer a conversation.

        Args:
            conversation: the conversation.
            kind: the beginning of the answer's id.
            shows_calls: whether the stream reports the calls that the server executes.

        Raises:
            RequestError: a field is wrong, the model does not exist, or the queue is full.
            Unavailable: the model cannot answer now.
        """
        runner = await self.lease(conversation.model)
        with naming_fields(conversation.field_of):
            head = self.head(kind, runner)
            request = await self.request(conversation, runner, head.id)
            self.report_unenforced_tools(conversation, runner.facts)
            scores = await self._scores(conversation, request, runner)
            source = await self.submit(conversation, request, runner, shows_calls=shows_calls)
            reader = naming_media(source, conversation.media_paths)
        params = request.params or runner.facts.defaults
        extras, images_s = conversation.extras, self.images_s
        return Answer(head, runner, params, source, reader, extras, scores, images_s)

    async def lease(self, name: str | None) -> Runner:
        """Lease a model's runner until this exchange ends, and wait until it is loaded.

        Args:
            name: the model; None means the only model of the server.

        Raises:
            RequestError: the model does not exist, or no name is given and there are several
                models; or the model does not support a field that changes answers.
            Unavailable: the model cannot answer now, or was not loaded in time.
            Overloaded: too many requests wait for their models.
        """
        self.model = self.service.name(name)
        began_s = time.monotonic()
        headers = DemandHeaders(self.headers, self.service.count_unenforced)
        runner = await self.admission.lease(self.model, headers.report)
        self.load_s = time.monotonic() - began_s
        if self.plugin_fields:
            self._drop_ignored_plugin_fields(runner.facts)
        return runner

    def head(self, kind: str, runner: Runner) -> AnswerHead:
        """Return the fields that all objects of an answer repeat; its id starts with ``kind``."""
        answer_id = f"{kind}-{token_hex(12)}"
        return AnswerHead(answer_id, int(time.time()), self.model, _fingerprint(runner.facts))

    async def request(
        self,
        conversation: Conversation,
        runner: Runner,
        request_id: str,
        *,
        light: bool = False,
    ) -> RunnerRequest:
        """Return the request for the runner, and report the fields that the model ignores.

        Args:
            conversation: the conversation.
            runner: the runner of the model.
            request_id: the id of the request.
            light: whether to read only the sizes of images.

        Raises:
            RequestError: a field is wrong; the error names it as a runner would.
        """
        self.report_unsupported(conversation, runner.facts)
        request, self.images_s = await self.builder.request(
            conversation,
            runner.facts,
            request_id,
            self.caller,
            added=self.plugin_fields,
            light=light,
        )
        return request

    async def submit(
        self,
        conversation: Conversation,
        request: RunnerRequest,
        runner: Runner,
        *,
        shows_calls: bool = False,
        max_calls: int | None = None,
    ) -> AnswerStream | ToolLoop:
        """Submit a request, in a loop that executes calls if it asks for tools of the server.

        Args:
            conversation: the conversation.
            request: the request that was made of it.
            runner: the runner of the model.
            shows_calls: whether the stream reports calls and their results.
            max_calls: the largest number of calls in all rounds; None limits only the rounds.

        Raises:
            RequestError: a tool does not exist, the request is too long, or the queue is full.
            Unavailable: a tool is not available now.
        """
        if not conversation.server_tools:
            return await runner.asubmit(request)
        loop = await ToolLoop.of(
            conversation,
            request,
            runner,
            self.service,
            shows_calls=shows_calls,
            max_calls=max_calls,
        )
        await loop.submit()
        return loop

    async def _scores(
        self, conversation: Conversation, request: RunnerRequest, runner: Runner
    ) -> list[Sample]:
        """Return the scored tokens of the prompt, if the client requests them."""
        if conversation.num_prompt_logprobs is None:
            return []
        scorer = PromptScorer(runner, conversation.num_prompt_logprobs, "prompt_logprobs")
        return await scorer.score(request)

    async def embed(
        self, runner: Runner, texts: Sequence[Plain], field: str, priority: int = 0
    ) -> list[Completion]:
        """Embed plain texts, as many at once as the engine has sequences.

        Args:
            runner: the runner of a leased model.
            texts: the texts, or their tokens.
            field: the field of the body that has them; errors name a text in it.
            priority: a larger value runs later.

        Returns:
            A completion for each text, in their order.

        Raises:
            RequestError: the model has no embeddings, or a text is too long; of several, the first.
            Unavailable: an answer was aborted.
        """
        with naming_fields(partial(plain_field, field)):
            check_plain_size(texts, self.service.settings.max_text_chars, runner.facts)

        async def embedded(named: tuple[str, Plain]) -> Completion:
            name, text = named
            request = RunnerRequest(
                task="embed",
                priority=priority + self.caller.priority,
                tenant=self.caller.tenant,
                account=self.caller.account,
                trace=self.caller.trace,
                **plain_fields(text),
            )
            with naming_fields(partial(plain_field, name)):
                completion = await (await runner.asubmit(request)).aresult()
            if completion.choices[0].embedding is None:
                raise Unavailable("the answer was cut off", code="aborted")
            return completion

        named = zip(plain_names(texts, field), texts, strict=True)
        return await in_order(embedded, named, runner.facts.limits.max_sequences)

    # Responses.

    def whole(self, answer: Answer, encode: Callable[[Completion], Iterable[bytes]]) -> ASGIApp:
        """Return a response that is sent once the answer is complete; ``encode`` makes pieces."""
        return self.whole_of(answer.reader, encode, answer.images_s)

    def whole_of(
        self,
        stream: Ending,
        encode: Callable[[Completion], Iterable[bytes]],
        images_s: float = 0.0,
    ) -> ASGIApp:
        """Return a response that is sent at the end of any answer; see :meth:`whole`."""
        return WholeAnswer(stream, encode, self.service, self.headers, images_s)

    def stream(self, answer: Answer, events: Events, *, hides_sizes: bool = False) -> ASGIApp:
        """Return a response that streams an answer.

        Args:
            answer: an answer that was accepted.
            events: encodes it.
            hides_sizes: whether to pad events, so that their sizes do not reveal their text.
        """
        return self.stream_chunks(
            answer.reader, events, hides_sizes=hides_sizes, images_s=answer.images_s
        )

    def stream_chunks(
        self, stream: Chunks, events: Events, *, hides_sizes: bool = False, images_s: float = 0.0
    ) -> ASGIApp:
        """Return a response that streams the chunks of any answer; see :meth:`stream`."""
        encoder = Obfuscated(events) if hides_sizes else events
        return EventStream(stream, encoder, self.service, self.headers, images_s)

    def json(self, body: Any) -> ASGIApp:
        """Return a response with a short JSON body."""
        return ASGIResponse(body=msgspec.json.encode(body), headers=self.headers)

    def pieces(self, make: Callable[[], Iterable[bytes]]) -> ASGIApp:
        """Return a JSON response encoded in pieces; ``make`` runs outside the event loop."""
        return PiecedAnswer(make, self.service, self.headers)

    # Reports.

    def report_ignored(self, ignored: frozenset[str]) -> None:
        """Report ignored fields of the body to the client and the operator.

        Raises:
            RequestError: the client or the operator rejects requests with ignored fields.
        """
        if ignored:
            self.headers |= self.service.ignore(ignored, self.http.headers, besides=self._ignored)
            self._ignored |= ignored

    def report_unsupported(self, conversation: Conversation, facts: RunnerFacts) -> None:
        """Report fields that are set and that the model ignores.

        Raises:
            RequestError: the client or the operator rejects requests with ignored fields.
        """
        ignored = set()
        if conversation.detail_field and DETAIL not in facts.options:
            ignored.add(conversation.detail_field)
        if conversation.reasoning_effort is not None and EFFORT not in facts.options:
            ignored.add(conversation.effort_field)
        self.report_ignored(frozenset(ignored))

    def report_unenforced_tools(self, conversation: Conversation, facts: RunnerFacts) -> None:
        """Report to the client and the operator that nothing enforces the schemas of tools."""
        offers = conversation.tools or conversation.server_tools
        if offers and conversation.tool_choice != "none" and CONSTRAINT not in facts.options:
            self.headers[UNCONSTRAINED_HEADER] = "tools"
            self.service.count_unenforced()

    def count_bytes(self, num_bytes: int) -> None:
        """Count bytes that the body refers to, such as stored items, as if they were part of it.

        Raises:
            Overloaded: the limit of body bytes in memory is reached.
        """
        if self._sent is not None:
            self._sent.count(num_bytes)

    def _drop_ignored_plugin_fields(self, facts: RunnerFacts) -> None:
        """Remove and report the plugin fields that the model does not support."""
        idle = frozenset(self.plugin_fields.keys() - facts.request_fields.keys())
        for name in sorted(idle):
            del self.plugin_fields[name]
            if any(each.changes != "nothing" for each in self.service.request_fields[name]):
                raise refusal(name)
        self.report_ignored(idle)


def _fingerprint(facts: RunnerFacts) -> str:
    """Return OpenAI's ``system_fingerprint``, a short digest of what made the answer.

    It changes with the version, the model's name or its limits.
    """
    subject = f"{__version__} {facts.name} {facts.limits}"
    return f"fp_{hashlib.sha256(subject.encode()).hexdigest()[:12]}"
