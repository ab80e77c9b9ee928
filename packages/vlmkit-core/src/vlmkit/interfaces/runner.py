"""Who answers requests, seen from outside: what a server, a command or a Python program holds.

A :class:`vlmkit.Pipeline` is one, on an engine in this process. Another may forward requests to
other runners, or to another process: whoever holds it cannot tell. How a request is scheduled and
computed is no part of this interface.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.request_field import FieldFacts
from vlmkit.interfaces.sampler import SamplerClaims
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.completion import Chunk, Completion, FinishReason, Timings, Usage
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.types.sampling import SamplingParams

CONSTRAINT = "constraint"
"""The option that an answer can be kept within a constraint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """What is known of a runner before it is asked anything; never changes, and can be pickled.

    Attributes:
        name: how the model is called.
        limits: what its engine can take.
        modalities: what a message may hold, ``text`` first.
        eos_ids: tokens that end an answer.
        defaults: how tokens are chosen for a request that does not say.
        bounds: what is refused of one request, and how many threads read prompts.
        options: what may be asked that not every model has: options that its tokenizer honours, and
            :data:`CONSTRAINT`.
        media_loaders: what opens files, by name.
        sampler: what its sampler does not follow.
        request_fields: fields that its plugins added to requests, by name.
        encoder_precision: what its media encoder computes with; empty where that does not say. The
            engine's is in ``limits``.
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
        """Whether a message may show images."""
        return "image" in self.modalities


class AnswerStream(Protocol):
    """The answer to one request, while it comes; whoever drops it aborts the request.

    It is read once, by one reader, in one of four ways: by iteration, by asynchronous iteration, in
    lots (:meth:`next_chunks`) or whole.
    """

    @property
    def num_choices(self) -> int:
        """How many answers were asked for."""
        ...

    @property
    def prompt_token_ids(self) -> Seq[int]:
        """The tokens of the prompt, images expanded; its completion has them, too."""
        ...

    @property
    def usage(self) -> Usage:
        """What the request took so far."""
        ...

    @property
    def timings(self) -> Timings:
        """Where its time went so far."""
        ...

    @property
    def reasons(self) -> Seq[FinishReason]:
        """Why those of its choices ended that have, in the order of their ends."""
        ...

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks as they come.

        Raises:
            VlmkitError: the request failed.
        """
        ...

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield chunks as they come; the asynchronous form of iteration."""
        ...

    async def next_chunks(self) -> list[Chunk]:
        """Wait for, and return, everything that has come; empty when the answer is over.

        Raises:
            VlmkitError: the request failed.
        """
        ...

    def result(self) -> Completion:
        """Wait for the end and return everything.

        Raises:
            VlmkitError: the request failed.
        """
        ...

    async def aresult(self) -> Completion:
        """Wait for the end and return everything; the asynchronous form of :meth:`result`."""
        ...

    def abort(self) -> None:
        """Stop generating and free everything; harmless when it is over already."""
        ...


@runtime_checkable
class Runner(Protocol):
    """Answers requests to one model. Its methods may be called from any thread."""

    @property
    def facts(self) -> RunnerFacts:
        """What is known of it."""
        ...

    def submit(self, request: Request) -> AnswerStream:
        """Start a request; its answer comes through the stream.

        Raises:
            RequestError: the request is wrong, too long, or the queue is full. An answer that is
                read raises what was found out later.
            EngineError: nothing can be answered now, or any more.
        """
        ...

    async def asubmit(self, request: Request) -> AnswerStream:
        """Start a request without holding up the event loop; returns when it was accepted.

        Raises:
            RequestError: the request is wrong, too long, or the queue is full.
            EngineError: nothing can be answered now, or any more.
        """
        ...

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return what a request's prompt comes to; it may be longer than what can be answered.

        Raises:
            RequestError: the request is wrong.
            EngineError: nothing can be read any more.
        """
        ...

    def detokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens; takes time where they are many.

        Raises:
            RequestError: one is not in the vocabulary: it has neither a text nor a logit.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token stands for; may be part of a character."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether a request would be refused now because too many wait."""
        ...

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Call a function with the reason when no request can be answered any more.

        Every request has its error by then. The function is called in any thread, which it must not
        hold up; at once where that has happened already.
        """
        ...

    def stats(self) -> RunnerStats:
        """Return counters for monitoring."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the present ones; tell whether all ended in time."""
        ...

    def close(self) -> None:
        """Abort what runs and free everything; harmless when done twice."""
        ...
