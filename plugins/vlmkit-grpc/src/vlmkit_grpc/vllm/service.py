"""The services of a worker for vllm-router: ``vllm.Inference`` and ``vllm.Control``.

They carry prompts of tokens to a runner, and its tokens back. They neither tokenize nor render: a
router does. The same runner answers the gateways of :mod:`vlmkit_grpc.service`.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from vlmkit import __version__
from vlmkit.errors import (
    EngineError,
    EngineFailed,
    OutOfMemory,
    PromptNotMade,
    QueueFull,
    RequestCancelled,
    RequestError,
    VlmkitError,
    WorkerLost,
)
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.runner import Admit, AnswerStream, Runner
from vlmkit.types.completion import Chunk
from vlmkit.types.demand import Demand
from vlmkit_grpc.protocol.vllm_pb2 import (
    AbortResponse,
    FinishInfo,
    GenerateRequest,
    GenerateResponse,
    GetKvEventSourcesResponse,
    ModelInfo,
    ParallelismInfo,
    SequenceOutput,
    ServerInfo,
)
from vlmkit_grpc.protocol.vllm_pb2_grpc import (
    ControlServicer,
    InferenceServicer,
    add_ControlServicer_to_server,
    add_InferenceServicer_to_server,
)
from vlmkit_grpc.vllm.answers import Answers
from vlmkit_grpc.vllm.requests import (
    FIELDS,
    FieldNotSupportedError,
    ModelUnknownError,
    runner_request,
)

SERVICES = ("vllm.Inference", "vllm.Control")
API_VERSION = "vllm"
BYTES_OF_ID = 5
OTHER_BYTES = 2 * 2**20  # a constraint, token ids and texts beside the prompt
MAX_LOGPROBS = 2**20
"""The most log-probabilities of an answer that is not streamed; each takes some hundred bytes."""


class _EndsError(EngineError):
    """The process ends, or takes no new requests."""


_CODES: dict[type[VlmkitError], grpc.StatusCode] = {
    FieldNotSupportedError: grpc.StatusCode.UNIMPLEMENTED,
    ModelUnknownError: grpc.StatusCode.NOT_FOUND,
    QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    OutOfMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    PromptNotMade: grpc.StatusCode.UNAVAILABLE,
    RequestCancelled: grpc.StatusCode.UNAVAILABLE,
    EngineFailed: grpc.StatusCode.UNAVAILABLE,
    WorkerLost: grpc.StatusCode.UNAVAILABLE,
    _EndsError: grpc.StatusCode.UNAVAILABLE,
    EngineError: grpc.StatusCode.INTERNAL,
}


class _Call:
    """A request from its arrival to its end.

    Args:
        request_id: its caller's name for it; empty for none.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.preparing: asyncio.Task[AnswerStream] | None = None
        self.stream: AnswerStream | None = None
        self.is_aborted = False

    def abort(self) -> None:
        """Stop the computation; its caller gets what there is."""
        self.is_aborted = True
        if self.stream is not None:
            self.stream.abort()
        elif self.preparing is not None:
            self.preparing.cancel()


class VllmServices(InferenceServicer, ControlServicer):
    """Answers vllm-router with a runner.

    Args:
        runner: answers the requests.
        stall_timeout_s: time for a caller to read a message.
    """

    def __init__(self, runner: Runner, stall_timeout_s: float) -> None:
        self._runner = runner
        self._stall_timeout_s = stall_timeout_s
        self._open: set[_Call] = set()
        self._is_draining = self._is_over = False
        self._instance_id = secrets.token_hex(8)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the services to a server."""
        add_InferenceServicer_to_server(self, server)
        add_ControlServicer_to_server(self, server)

    def note_drain(self) -> None:
        """Refuse new requests."""
        self._is_draining = True

    def end(self) -> None:
        """End all requests, each with an error."""
        self._is_over = True
        for call in self._open:
            call.abort()

    async def Generate(self, request: GenerateRequest, context: Any) -> GenerateResponse:  # noqa: N802
        """Answer a prompt as a whole."""
        reply = _ABORTED
        async with self._opened(request, context) as call:
            _check_one(request)
            answers = await self._answers(request, call, partial(_admit_whole, request))
            if answers is not None:
                chunks = [chunk async for each in self._chunks(answers) for chunk in each]
                output = answers.output(0, chunks)
                reply = GenerateResponse(prompt_info=answers.prompt(), outputs=output)
        return reply

    async def GenerateStream(self, request: GenerateRequest, context: Any) -> None:  # noqa: N802
        """Answer a prompt piece by piece."""
        async with self._opened(request, context) as call:
            answers = await self._answers(request, call, None)
            if answers is None:
                await self._write(context, _ABORTED)
                return
            await self._write(context, GenerateResponse(prompt_info=answers.prompt()))
            async for chunks in self._chunks(answers):
                for message in answers.messages(chunks):
                    await self._write(context, message)

    async def GetServerInfo(self, request: Any, context: Any) -> ServerInfo:  # noqa: ARG002, N802
        """State the limits of the engine."""
        limits = self._runner.facts.limits
        block = limits.event_block_tokens or limits.prefix_block_tokens
        return ServerInfo(
            engine_version=__version__,
            api_version=API_VERSION,
            instance_id=self._instance_id,
            parallelism=ParallelismInfo(
                tensor_parallel_size=1,
                pipeline_parallel_size=1,
                data_parallel_size=1,
                decode_context_parallel_size=1,
                world_size=1,
            ),
            max_model_len=limits.max_sequence_tokens,
            kv_block_size=block,
            total_kv_blocks=limits.capacity_tokens // block if block else 0,
            max_running_requests=limits.max_sequences,
            max_batched_tokens=limits.max_chunk_tokens,
        )

    async def GetModelInfo(self, request: Any, context: Any) -> ModelInfo:  # noqa: ARG002, N802
        """State the name of the model, and what a prompt may be."""
        name = self._runner.facts.name
        return ModelInfo(
            model_id=name,
            served_model_name=name,
            supports_text_input=True,
            supports_token_ids_input=True,
        )

    async def GetKvEventSources(  # noqa: N802
        self,
        request: Any,  # noqa: ARG002
        context: Any,  # noqa: ARG002
    ) -> GetKvEventSourcesResponse:
        """State that the changes of the prefix cache are not published."""
        return GetKvEventSourcesResponse()

    async def Abort(self, request: Any, context: Any) -> AbortResponse:  # noqa: ARG002, N802
        """End requests by the ids that their callers gave."""
        ids = frozenset(request.request_ids) - {""}
        for call in self._open:
            if call.request_id in ids:
                call.abort()
        return AbortResponse()

    # The life of a request.

    @asynccontextmanager
    async def _opened(self, message: GenerateRequest, context: Any) -> AsyncIterator[_Call]:
        """Open a request, and free everything at its end; its error becomes the call's status."""
        call = _Call(message.request_id)
        self._open.add(call)
        try:
            try:
                yield call
            finally:
                call.abort()
                self._open.discard(call)
        except (VlmkitError, TimeoutError) as error:
            await context.abort(*self._status_of(error))

    async def _answers(
        self, message: GenerateRequest, call: _Call, admit: Admit | None
    ) -> Answers | None:
        """Submit a request, and return the encoder of its answers; None if it was aborted."""
        if self._is_draining or self._is_over:
            raise _EndsError("the worker drains", hint="ask another worker")
        facts = self._runner.facts
        request = runner_request(message, facts)
        call.preparing = asyncio.create_task(self._runner.asubmit(request, admit))
        await asyncio.wait({call.preparing})
        self._check_end()
        if call.preparing.cancelled():
            return None
        call.stream = call.preparing.result()
        return Answers(message, call.stream, facts.eos_ids, message.stopping.stop_token_ids)

    async def _chunks(self, answers: Answers) -> AsyncIterator[list[Chunk]]:
        """Yield what arrives of an answer, until its end."""
        while chunks := await answers.stream.next_chunks():
            self._check_end()
            yield chunks

    async def _write(self, context: Any, message: GenerateResponse) -> None:
        """Send a message.

        Raises:
            TimeoutError: the caller does not read.
        """
        async with asyncio.timeout(self._stall_timeout_s):
            await context.write(message)

    def _check_end(self) -> None:
        if self._is_over:
            raise _EndsError("the process ends", hint="ask another worker")

    def _status_of(self, error: Exception) -> tuple[grpc.StatusCode, str]:
        """Return the status with which an error ends a call."""
        if isinstance(error, TimeoutError):
            return grpc.StatusCode.DEADLINE_EXCEEDED, "the call stalled"
        code = next(_CODES[each] for each in type(error).__mro__ if each in _CODES)
        if self._is_draining and isinstance(error, EngineError):
            code = grpc.StatusCode.UNAVAILABLE
        if not isinstance(error, RequestError) or error.param is None:
            return code, str(error)
        text = str(error).removeprefix(f"{error.param}: ")
        return code, f"{FIELDS.get(error.param, error.param)}: {text}"


_ABORTED = GenerateResponse(
    outputs=SequenceOutput(finish_info=FinishInfo(finish_reason=FinishInfo.ABORTED))
)


def request_bytes(limits: EngineLimits) -> int:
    """Return the bytes of the largest request: a prompt of the context, and all else."""
    return BYTES_OF_ID * limits.max_sequence_tokens + OTHER_BYTES


def _check_one(message: GenerateRequest) -> None:
    """Refuse several answers, for which a whole reply has no place."""
    if message.sampling.num_sequences > 1:
        raise RequestError("is over 1, which only GenerateStream takes", param="n")


def _admit_whole(message: GenerateRequest, demand: Demand) -> None:
    """Refuse a whole reply that would take much memory."""
    if not message.response.output_logprobs:
        return
    num_each = 1 + message.response.output_candidates.top_n
    if demand.answer_tokens * num_each > MAX_LOGPROBS:
        problem = f"the answer may have over {MAX_LOGPROBS}, which only GenerateStream takes"
        raise RequestError(problem, param="logprobs")
