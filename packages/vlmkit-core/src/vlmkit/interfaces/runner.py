"""The interface of runners, which answer requests; used by servers, commands and Python programs.

A :class:`vlmkit.Pipeline` is a runner on an engine in this process. Other runners may forward
requests to further runners or to another process; their callers see no difference. The interface
does not cover how a request is scheduled and computed.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.request_field import FieldFacts
from vlmkit.interfaces.sampler import SamplerClaims
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.completion import Chunk, Completion, FinishReason, Timings, Usage
from vlmkit.types.demand import Demand
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.types.sampling import SamplingParams

CONSTRAINT = "constraint"
"""The option of models that can constrain an answer."""

Admit: TypeAlias = Callable[[Demand], None]
"""Decides on a request whose demand is known: returns to let it proceed, raises to refuse it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """The constant properties of a runner, known before any request.

    Attributes:
        name: the name of the model.
        limits: the limits and capabilities of its engine.
        modalities: the kinds of content that a message may hold, ``text`` first.
        eos_ids: tokens that end an answer.
        defaults: sampling parameters of a request that does not set them.
        bounds: limits of one request, and the number of threads that prepare prompts.
        options: optional features that requests may use: the options that its tokenizer honours,
            and :data:`CONSTRAINT`.
        media_loaders: names of the media loaders that open files.
        sampler: the parameters that its sampler does not follow.
        request_fields: fields that its plugins added to requests, by name.
        encoder_precision: the precision of its media encoder; empty if unknown. The engine's is in
            ``limits``.
    """

    name: str
    limits: EngineLimits
    modalities: tuple[str, ...]
    eos_ids: frozenset[int]
    defaults: SamplingParams
    bounds: PipelineSettings
    options: frozenset[str] = frozenset()
    media_loaders: tuple[str, ...] = ()
    sampler: SamplerClaims = field(default_factory=SamplerClaims)
    request_fields: Mapping[str, FieldFacts] = field(default_factory=dict)
    encoder_precision: str = ""

    @property
    def takes_images(self) -> bool:
        """Whether a message may contain images."""
        return "image" in self.modalities


class AnswerStream(Protocol):
    """The answer to one request while it is generated; dropping the object aborts the request.

    One reader may read it once, in one of four ways: by iteration, by asynchronous iteration, in
    batches (:meth:`next_chunks`) or as a whole.
    """

    @property
    def num_choices(self) -> int:
        """Number of answers that the request asks for."""
        ...

    @property
    def prompt_token_ids(self) -> Seq[int]:
        """The tokens of the prompt, images expanded; the same as in the completion."""
        ...

    @property
    def usage(self) -> Usage:
        """The tokens that the request used so far."""
        ...

    @property
    def timings(self) -> Timings:
        """The time of the request's stages so far, in seconds."""
        ...

    @property
    def reasons(self) -> Seq[FinishReason]:
        """The finish reasons of the choices that ended, in the order in which they ended."""
        ...

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks as they arrive.

        Raises:
            VlmkitError: the request failed.
        """
        ...

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield chunks as they arrive; the asynchronous form of iteration."""
        ...

    async def next_chunks(self) -> list[Chunk]:
        """Wait for chunks and return all that arrived; empty at the end of the answer.

        Raises:
            VlmkitError: the request failed.
        """
        ...

    def result(self) -> Completion:
        """Wait for the end and return the whole completion.

        Raises:
            VlmkitError: the request failed.
        """
        ...

    async def aresult(self) -> Completion:
        """Wait for the end and return the completion; the asynchronous form of ``result``."""
        ...

    def abort(self) -> None:
        """Stop generating and free all resources; no effect if the answer has ended."""
        ...


@runtime_checkable
class Runner(Protocol):
    """Answers requests to one model. Its methods may be called from any thread."""

    @property
    def facts(self) -> RunnerFacts:
        """The constant properties of this runner."""
        ...

    def submit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request and return the stream of its answer.

        Errors that are found later are raised when the stream is read.

        Args:
            request: the request.
            admit: called once, in any thread, with the demand of the request, when its prompt is
                built and before it is queued. The request waits for it. It may block for a moment,
                as for a lock. A runner of another process sends it the demand, and waits for its
                decision. None lets every request proceed.

        Raises:
            BaseException: the error of ``admit``, unchanged.
            RequestError: the request is invalid or too long, or the queue is full.
            EngineError: the runner cannot answer now, or has failed.
        """
        ...

    async def asubmit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request without blocking the event loop; return when it is accepted.

        If the call is cancelled, the request ends at once, whether or not ``admit`` has returned.

        Args:
            request: the request.
            admit: see :meth:`submit`.

        Raises:
            BaseException: the error of ``admit``, unchanged.
            RequestError: the request is invalid or too long, or the queue is full.
            EngineError: the runner cannot answer now, or has failed.
        """
        ...

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return the tokens of a request's prompt, which may exceed the context.

        Raises:
            RequestError: the request is invalid.
            EngineError: the runner has failed.
        """
        ...

    def detokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens; slow for many tokens.

        Raises:
            RequestError: a token is not in the vocabulary: it has neither a text nor a logit.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which may be part of a character; never waits.

        It is called for each log-probability of an answer. A runner of another process gets the
        bytes of all tokens once, when it connects, and looks them up: see :class:`HasTokenTable`.
        """
        ...

    @property
    def is_ready(self) -> bool:
        """Whether the runner can answer requests."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether a request would be refused now because the queue is full."""
        ...

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Register a function to be called with the error when the runner fails for good.

        By then every request has received its error. If the runner has failed already, the function
        is called at once.

        Args:
            tell: called in any thread, which it must not block.
        """
        ...

    def stats(self) -> RunnerStats:
        """Return counters for monitoring."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the running ones.

        Returns:
            Whether all ended within ``timeout_s`` seconds.
        """
        ...

    def close(self) -> None:
        """Abort all requests and free all resources; a second call does nothing."""
        ...


@runtime_checkable
class HasTokenTable(Protocol):
    """An optional part of a runner: the bytes of all tokens at once, for other processes.

    :func:`vlmkit.kit.runner_tokens.token_table` returns them for every runner.
    """

    def token_table(self) -> Seq[bytes]:
        """Return the bytes of every token, by token id; may take seconds.

        The item of each token equals the result of ``token_bytes``. It is empty for an id that only
        the logits have.
        """
        ...


@runtime_checkable
class RestartsItself(Protocol):
    """An optional part of a runner: it loses its engine, and becomes ready again by itself.

    A server stays alive meanwhile, and is not ready.
    """

    @property
    def is_restarting(self) -> bool:
        """Whether the runner cannot answer now and will later; False once it has failed for good.

        It may be true before the runner has failed, and is ignored while the runner is ready.
        """
        ...


@runtime_checkable
class DetokenizesAsync(Protocol):
    """An optional part of a runner: ``detokenize`` for callers in an event loop.

    :func:`vlmkit.kit.runner_tokens.adetokenize` works with every runner.
    """

    async def adetokenize(self, token_ids: Seq[int]) -> str:
        """Return what ``detokenize`` returns, without blocking the event loop.

        Raises:
            RequestError: a token is not in the vocabulary.
            EngineError: the runner cannot answer now, or has failed.
        """
        ...
