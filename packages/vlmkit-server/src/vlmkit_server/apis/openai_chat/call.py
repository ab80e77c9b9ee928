"""The life cycle that all requests with a body share: admission, decoding, leases and reports.

Each route implements how a body is answered.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from secrets import token_hex
from typing import Any, Generic, TypeVar

import msgspec
from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from vlmkit._version import __version__
from vlmkit.errors import QueueFull
from vlmkit.interfaces.runner import CONSTRAINT, Runner, RunnerFacts
from vlmkit.running.prompting.request_fields import refusal
from vlmkit.types.request import Request as RunnerRequest
from vlmkit_server.apis.openai_chat.answer import AnswerHead
from vlmkit_server.apis.openai_chat.convert import Converter
from vlmkit_server.apis.openai_chat.image_options import DETAIL_FIELD, ignored_details
from vlmkit_server.apis.openai_chat.prompt_options import EFFORT
from vlmkit_server.apis.openai_chat.wire import ChatRequest
from vlmkit_server.exchange.bodies import Body
from vlmkit_server.exchange.deadline import TooLate
from vlmkit_server.exchange.metered_runner import MeteredRunner
from vlmkit_server.exchange.obfuscation import Obfuscated
from vlmkit_server.exchange.output_limit import OutputLimit
from vlmkit_server.exchange.response_buffer import ResponseBuffer
from vlmkit_server.exchange.service import Service
from vlmkit_server.exchange.streaming import Chunks, Events, EventStream
from vlmkit_server.exchange.unenforced_schemas import (
    HEADER as UNCONSTRAINED_HEADER,
    UnenforcedSchemas,
)
from vlmkit_server.http.caller import caller_of
from vlmkit_server.http.errors import WrongMediaType
from vlmkit_server.logs.request_record import RECORD, RequestRecord
from vlmkit_server.rate_limits.guard import USAGE
from vlmkit_server.rate_limits.usage_charge import UsageCharge
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.structure import is_light

B = TypeVar("B", bound=msgspec.Struct)


class Call(ABC, Generic[B]):
    """Handles one request, as the ASGI application of its response.

    The work runs here and not in the route handler, so that the request counts as admitted until
    the last byte is sent.

    Args:
        request: the HTTP request.
        service: the models and the admission of requests.
        reader: decodes the body.

    Attributes:
        plugin_fields: the values of fields that plugins added. Once the model is known, those that
            it does not support are removed.
        model: the name of the model that the body requests.
        content: the body, if it was read before this object was created.
    """

    def __init__(
        self, request: Request[Any, Any, Any], service: Service, reader: BodyReader[B]
    ) -> None:
        self.service = service
        self.caller = caller_of(request)
        self.headers: dict[str, str] = {}
        self.plugin_fields: dict[str, Any] = {}
        self.model = ""
        self.content: bytes | None = None
        self._ignored: frozenset[str] = frozenset()
        self._request = request
        self._reader = reader
        self._leases = AsyncExitStack()
        self._sent: Body | None = None
        self._whole: ResponseBuffer | None = None
        usage = request.scope["state"].get(USAGE)
        self._charge = None if usage is None else UsageCharge(usage)
        self._record: RequestRecord | None = request.scope["state"].get(RECORD)

    stores_streamed_answers = False  # a streamed answer then counts as buffered, too

    @abstractmethod
    async def start(self, body: B) -> ASGIApp:
        """Start to answer a body and return the response; nothing is sent before.

        The task is cancelled when the client disconnects. Errors become responses with their own
        status.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, start the request and send the answer."""
        self.service.check_admission(self.caller.account)
        with ExitStack() as place:
            async with self._leases:
                if self._charge is not None:
                    self._leases.callback(self._charge.close)
                try:
                    await self._answer(place, scope, receive, send)
                except QueueFull as error:  # a runner does not know the drain rate
                    if error.retry_after_s is None:
                        error.retry_after_s = self.service.retry_after_s(self.caller.account)
                    raise
                except TooLate as error:
                    error.retry_after_s = self.service.retry_after_s(self.caller.account)
                    raise

    async def _answer(self, place: ExitStack, scope: Scope, receive: Receive, send: Send) -> None:
        with self.service.bodies.opened(self._request) as sent:
            content = await self._read_content(sent)
            # A body that never arrives completely is not admitted.
            place.enter_context(self.service.admitted(self.caller.account))
            body, ignored = await self._read(content)
            del content
            self.report_ignored(ignored)
            self._sent = sent
            if self.stores_streamed_answers or not getattr(body, "stream", None):
                self._whole = ResponseBuffer(
                    self.service.resource_limits.logprob_bytes, self.caller.account
                )
                self._leases.callback(self._whole.close)
            response = await self.service.active.attend(self.start(body), receive, scope)
            del body  # it can be large and is not needed while the answer is generated
        await response(scope, receive, send)

    async def runner(self, name: str | None) -> Runner:
        """Lease a model's runner until this call ends, and wait until it is loaded.

        Args:
            name: the model; None means the only model of the server.

        Raises:
            RequestError: the model does not exist, or no name is given and there are several
                models; or the model does not support a field that changes answers.
            Unavailable: the model cannot answer now, or was not loaded in time.
            Overloaded: too many requests wait for their models.
        """
        fleet = self.service.fleet
        self.model = self.service.name(name)
        leased = fleet.leased(self.model)
        runner = await self._leases.enter_async_context(leased)
        if self.plugin_fields:
            self._drop_ignored_plugin_fields(runner.facts)
        clamped = OutputLimit(runner.facts, self.headers)
        unenforced = UnenforcedSchemas(self.headers, self.service.count_unenforced)
        return MeteredRunner(runner, clamped, unenforced, self._charge, self._record, self._whole)

    def stream_events(
        self, stream: Chunks, events: Events, *, hides_sizes: bool, images_s: float = 0.0
    ) -> ASGIApp:
        """Return a response that streams an answer.

        Args:
            stream: an answer that was accepted.
            events: encodes it.
            hides_sizes: whether to pad events, so that their sizes do not reveal their text.
            images_s: how long fetching and checking the images took, in seconds.
        """
        encoder = Obfuscated(events) if hides_sizes else events
        return EventStream(stream, encoder, self.service, self.headers, images_s)

    def count_bytes(self, num_bytes: int) -> None:
        """Count bytes that the body refers to, such as stored items, as if they were part of it.

        Raises:
            Overloaded: the limit of body bytes in memory is reached.
        """
        if self._sent is not None:
            self._sent.count(num_bytes)

    def transfer_leases(self) -> AsyncExitStack:
        """Transfer the runner's lease and the usage charge to work that outlives this call."""
        return self._leases.pop_all()

    def report_ignored(self, ignored: frozenset[str]) -> None:
        """Report more ignored fields of the body to the client and the operator.

        Raises:
            RequestError: the client or the operator rejects requests with ignored fields.
        """
        self.headers |= self.service.ignore(ignored, self._request.headers, besides=self._ignored)
        self._ignored |= ignored

    def _drop_ignored_plugin_fields(self, facts: RunnerFacts) -> None:
        """Remove and report the plugin fields that the model does not support."""
        idle = frozenset(self.plugin_fields.keys() - facts.request_fields.keys())
        for name in sorted(idle):
            del self.plugin_fields[name]
            if any(each.changes != "nothing" for each in self.service.request_fields[name]):
                raise refusal(name)
        self.report_ignored(idle)

    async def _read(self, content: bytes) -> tuple[B, frozenset[str]]:
        """Decode a body; a large one outside the event loop."""
        if is_light(content):
            return self._decoded(content)
        return await self.service.offload.run(partial(self._decoded, content), self.caller.account)

    def _decoded(self, content: bytes) -> tuple[B, frozenset[str]]:
        names = self.service.request_fields
        read = self._reader.read(content, names)
        if names:
            self.plugin_fields = self._reader.added(content, names)
        return read

    async def _read_content(self, sent: Body) -> bytes:
        if self.content is None:
            return await read_json(self._request, sent)
        content, self.content = self.content, None
        sent.count(len(content))
        return content


class MessagesCall(Call[B]):
    """A call whose body may have messages.

    Args:
        request: the HTTP request.
        service: the models and the admission of requests.
        reader: decodes the body.
        converter: converts messages for a runner.
    """

    def __init__(
        self,
        request: Request[Any, Any, Any],
        service: Service,
        reader: BodyReader[B],
        converter: Converter,
    ) -> None:
        super().__init__(request, service, reader)
        self.converter = converter

    async def prepare_request(
        self,
        chat: ChatRequest,
        facts: RunnerFacts,
        request_id: str,
        *,
        effort: str = EFFORT,
        detail: str = DETAIL_FIELD,
        light: bool = False,
    ) -> tuple[RunnerRequest, float]:
        """Convert a chat to a request for the runner, and report its fields without effect.

        Args:
            chat: the body, or its translation.
            facts: describes the model.
            request_id: the id of the request.
            effort: the body's name for the reasoning effort.
            detail: the body's name for the detail of an image.
            light: whether to read only the sizes of images.

        Returns:
            The request, and how long fetching and checking its images took, in seconds.

        Raises:
            RequestError: a field is wrong; the error names it.
        """
        idle = ignored_details(chat.messages, facts, detail)
        if chat.reasoning_effort is not None and EFFORT not in facts.options:
            idle |= {effort}
        self.report_ignored(idle)
        return await self.converter.request(
            chat, facts, request_id, self.caller, added=self.plugin_fields, light=light
        )

    def report_unenforced_tools(self, chat: ChatRequest, facts: RunnerFacts) -> None:
        """Report to the client and the operator that nothing enforces the schemas of tools."""
        offers = chat.shown_functions or chat.server_tools
        if offers and chat.tool_choice != "none" and CONSTRAINT not in facts.options:
            self.headers[UNCONSTRAINED_HEADER] = "tools"
            self.service.count_unenforced()


async def read_json(request: Request[Any, Any, Any], sent: Body) -> bytes:
    """Read a JSON body.

    The media type is required as a protection: a page in a browser cannot send it to another
    origin without a preflight request.

    Raises:
        WrongMediaType: the request has another media type.
    """
    if request.content_type[0] != "application/json":
        raise WrongMediaType(
            "the body must be announced as application/json",
            hint="add the header content-type: application/json, with curl by "
            "-H 'content-type: application/json'",
        )
    return await sent.read(request)


def answer_head(kind: str, model: str, runner: Runner) -> AnswerHead:
    """Return the fields that every object of a new answer repeats; the id starts with the kind."""
    return AnswerHead(
        f"{kind}-{token_hex(12)}", int(time.time()), model, _fingerprint(runner.facts)
    )


def _fingerprint(facts: RunnerFacts) -> str:
    """Return OpenAI's ``system_fingerprint``, a short digest of what made the answer.

    It changes with the version, the model's name or its limits.
    """
    subject = f"{__version__} {facts.name} {facts.limits}"
    return f"fp_{hashlib.sha256(subject.encode()).hexdigest()[:12]}"
