"""One running model in this process: its components tied together.

A pipeline turns a request into sequences, hands them to its loop and gives back a stream; it
decides nothing about scheduling and computes nothing. Who holds it knows it as a runner; what is
comfortable for people who write Python is the model's.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence as Seq
from dataclasses import asdict
from functools import cache
from itertools import chain, repeat
from types import TracebackType
from typing import Any, Self

from vlmkit.checkpoints.pooling import Pooling
from vlmkit.errors import ConfigError, RequestError
from vlmkit.interfaces.engine import CountsRoom, Engine
from vlmkit.interfaces.media_encoder import MediaEncoder, StatesPrecision
from vlmkit.interfaces.media_loader import MediaLoader
from vlmkit.interfaces.observer import Observer, RequestFacts
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.proposer import Proposer
from vlmkit.interfaces.request_field import RequestField
from vlmkit.interfaces.runner import CONSTRAINT, RunnerFacts
from vlmkit.interfaces.sampler import Sampler, SamplerClaims
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.running.constraints.compiled import MakeCompiler
from vlmkit.running.constraints.sandbox.worker import ConstraintWorker
from vlmkit.running.engine_loop.channel import Channel
from vlmkit.running.engine_loop.feature_cache import FeatureCache
from vlmkit.running.engine_loop.loop import Loop
from vlmkit.running.engine_loop.stream import Stream
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.running.pipeline.request_preparation import RequestPreparation
from vlmkit.running.pipeline.sampler_claims import claims_of
from vlmkit.running.prompting.image_decoding import ImageDecoder
from vlmkit.running.prompting.image_loader import ImageLoader
from vlmkit.running.prompting.media import MediaPreparation
from vlmkit.running.prompting.parameters import followed
from vlmkit.running.prompting.prompt_builder import LocalPromptBuilder, PromptBuilder
from vlmkit.running.prompting.renderers.pool import RendererPool
from vlmkit.running.prompting.renderers.prompt_builder import RendererPromptBuilder
from vlmkit.running.prompting.request_fields import facts_of
from vlmkit.running.prompting.request_workers import RequestWorkers
from vlmkit.running.prompting.tiff_loader import TiffLoader
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.running.scheduling.decode_memory import DecodeLease
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.demand import Demand
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.shown_image import ShownImage

log = logging.getLogger(__name__)


class Pipeline:
    """One running model.

    Assemble one by hand from components and give it to a :class:`vlmkit.Model` or to a server, or
    let :func:`vlmkit.load` do so from a model's name. Close it, or use it in a ``with`` statement:
    it owns a thread and the engine's memory.

    Args:
        tokenizer: the model's text side.
        engine: the language model.
        media_encoder: None for a model of texts.
        scheduler: the built-in one when None.
        sampler: the built-in one when None.
        proposer: guesses tokens that the engine then verifies; nothing is guessed when None.
        constraint: makes a compiler of constraints for a vocabulary, when the first one is asked
            for, or in ``prepare``; a request that asks for one is refused when None.
        constraint_worker: tries constraints in processes of their own before they are compiled;
            they are compiled at once when None.
        observers: who is told how requests fare, each by a name for the statistics.
        media_loaders: who opens files, each by a name for errors; the built-in ones for images when
            None.
        request_fields: fields of requests that its components read, and that plugins added.
        name: how the server lists it.
        defaults: sampling parameters of requests that state none.
        settings: bounds.
        pooling: returns how a text's hidden states become one vector.
        renderers: make prompts in processes of their own; in threads when None.
        component_names: how errors and the log call who made all of these.
    """

    def __init__(  # noqa: PLR0913 - one for each kind of component
        self,
        *,
        tokenizer: Tokenizer,
        engine: Engine,
        media_encoder: MediaEncoder | None = None,
        scheduler: Scheduler | None = None,
        sampler: Sampler | None = None,
        proposer: Proposer | None = None,
        constraint: MakeCompiler | None = None,
        constraint_worker: ConstraintWorker | None = None,
        observers: Mapping[str, Observer] | None = None,
        media_loaders: Mapping[str, MediaLoader] | None = None,
        request_fields: Iterable[RequestField[Any]] = (),
        name: str = "model",
        defaults: SamplingParams | None = None,
        settings: PipelineSettings | None = None,
        pooling: Callable[[], Pooling] = Pooling,
        renderers: RendererPool | None = None,
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        sampler = sampler or ArraySampler()
        fields = {field.name: field for field in request_fields}
        claims = claims_of(sampler)
        own: dict[str, MediaLoader] = {"image": ImageLoader(), "tiff": TiffLoader()}
        loaders = own if media_loaders is None else media_loaders
        self.facts = facts = RunnerFacts(
            name=name,
            limits=engine.limits,
            modalities=modalities_of(media_encoder),
            eos_ids=tokenizer.eos_ids,
            defaults=_followed(defaults or SamplingParams(), claims, name),
            bounds=settings or PipelineSettings(),
            options=tokenizer.honours.union(() if constraint is None else (CONSTRAINT,)),
            media_loaders=tuple(loaders),
            sampler=claims,
            request_fields={name: facts_of(field) for name, field in fields.items()},
            encoder_precision=_precision_of(media_encoder),
        )
        self._tokenizer = tokenizer
        self._engine = engine
        self._encoder = media_encoder
        self._features = FeatureCache(facts.bounds.feature_cache_bytes)
        num_renderers = 0 if renderers is None else renderers.num
        self._preparation = RequestWorkers(facts.bounds, num_renderers)
        num_at_once = max(1, facts.bounds.num_workers - 1)  # the last one is left to other requests
        pooling = cache(pooling)
        self._renderers = renderers
        self._constraint_worker = constraint_worker
        self._prompts: PromptBuilder = LocalPromptBuilder(
            tokenizer,
            MediaPreparation(loaders, facts, component_names),
            ImageDecoder(self._preparation.workers, num_at_once, facts.bounds.max_decoding_bytes),
            pooling,
            facts.limits,
            facts.bounds,
            component_names,
        )
        if renderers is not None:
            self._prompts = RendererPromptBuilder(self._prompts, renderers)
        self._intake = RequestPreparation(
            tokenizer=tokenizer,
            prompts=self._prompts,
            engine=engine,
            encoder=media_encoder,
            facts=facts,
            pooling=pooling,
            constraint=constraint,
            constraint_worker=constraint_worker,
            request_fields=fields,
            component_names=component_names,
        )
        self._is_closed = False
        self._closing = threading.Lock()
        if facts.limits.capacity_tokens < facts.limits.max_sequence_tokens:
            raise ConfigError(
                f"the cache of {facts.limits.capacity_tokens} tokens does not hold one sequence "
                f"of {facts.limits.max_sequence_tokens}",
                hint="raise the engine's cache or lower its max_sequence_tokens",
            )
        self._observers = ObserverDispatch(observers, component_names) if observers else None
        self._loop = Loop(
            engine=engine,
            encoder=media_encoder,
            scheduler=scheduler or ContinuousScheduler(),
            sampler=sampler,
            features=self._features,
            proposer=proposer,
            observers=self._observers,
            slow_s=facts.bounds.slow_step_s,
            stuck_s=facts.bounds.stuck_step_s,
            component_names=component_names,
        )

    def prepare(self) -> None:
        """Make now what the first request that wants it would wait for: what compiles constraints.

        That can take seconds in which no other thread runs, so a server has it done before it says
        that it is ready.

        Raises:
            VlmkitError: it could not be made.
        """
        self._intake.prepare()

    # One request.

    def submit(self, request: Request) -> Stream:
        """Start a request in this thread; its answer comes through the stream.

        Raises:
            RequestError: the request is wrong, too long, or the queue is full, or whoever admits it
                refuses.
            OutOfMemory: this machine has no room for its prompt now.
        """
        return self._preparation.here(self._submit, request)

    def _submit(self, request: Request, place: DecodeLease) -> Stream:
        started = time.perf_counter()
        params, prompt, sequences, pages, timings, sent = self._intake.read(request, place)
        place.keep(prompt)
        if request.admit is not None:
            request.admit(_demand(prompt, sequences))
        facts = RequestFacts(
            id=request.id or f"req-{secrets.token_hex(8)}",
            model=self.facts.name,
            tenant=request.tenant,
            params=params,
            prompt_tokens=len(prompt),
            image_tokens=_image_tokens(prompt),
            task=request.task,
            is_chat=bool(request.messages),
            prompt_s=time.perf_counter() - started,
            trace=request.trace,
        )
        channel = Channel(
            facts,
            max_unread_tokens=self.facts.bounds.max_unread_tokens,
            images=_shown_images(prompt, pages),
            encoded=sequences[0].encoded,
            image_timings=timings,
            sent=sent,
            account=request.account,
            observers=self._observers,
        )
        self._loop.submit([self._intake.job(s, channel, i) for i, s in enumerate(sequences)])
        return Stream(channel, prompt.token_ids, abort=self._loop.abort, resume=self._loop.wake)

    async def asubmit(self, request: Request) -> Stream:
        """Start a request: its prompt is made in a worker thread, of which there are few.

        Returns when the scheduler took the request. Cancelling this call cancels the request: its
        work ends within a second, wherever it is.

        Raises:
            RequestError: the request is wrong, too long, or the queue is full.
            OutOfMemory: this machine has no room for its prompt now.
        """
        stream = await self._begun(request)
        try:
            await stream.accepted()
        except BaseException:
            stream.abort()
            raise
        return stream

    async def _begun(self, request: Request) -> Stream:
        """Start a request in one of this pipeline's threads; abort it if nobody waits any more.

        Raises:
            EngineError: the pipeline closed before its turn came.
        """
        return await self._preparation.in_worker(self._submit, request, drop=Stream.abort)

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return what a request's prompt comes to; it is made in a worker thread.

        Cancelling this call cancels that work, too.

        Raises:
            RequestError: the request is wrong.
            OutOfMemory: this machine has no room for its images now.
            EngineError: the pipeline is closed.
        """
        return await self._preparation.in_worker(self._prompts.tokens, request)

    def detokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens.

        Raises:
            RequestError: one is not in the vocabulary: it has neither a text nor a logit.
        """
        num_known = max(self._tokenizer.vocab_size, self.facts.limits.vocab_size)
        if not all(0 <= token_id < num_known for token_id in token_ids):
            raise RequestError("a token is not in the vocabulary", param="token_ids")
        return self._tokenizer.decode(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token stands for; may be part of a character."""
        return self._tokenizer.token_bytes(token_id)

    # State.

    @property
    def is_ready(self) -> bool:
        """Whether requests can be served."""
        return self._loop.is_alive

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Call a function with the reason when no request can be served any more.

        Every request has its error by then. It is called in a thread of the pipeline's, which it
        must not hold up; or in this one, at once, where that has happened already.
        """
        self._loop.on_failure(tell)

    @property
    def is_full(self) -> bool:
        """Whether a request would be refused now because too many wait."""
        return self._loop.is_full

    def stats(self) -> RunnerStats:
        """Return counters for monitoring."""
        return RunnerStats(
            self._loop.num_running,
            self._loop.num_waiting,
            self._features.num_hits,
            self._features.num_misses,
            asdict(self._loop.stats),
            {} if self._observers is None else self._observers.stats(),
            self._engine.num_free_tokens if isinstance(self._engine, CountsRoom) else None,
        )

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the present ones; tell whether all ended in time."""
        return self._loop.drain(timeout_s)

    def close(self) -> None:
        """Abort what runs, stop the loop and free all memory; harmless when done twice.

        Raises:
            EngineFailed: the engine hangs and was given up; its memory cannot be freed.
        """
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        self._preparation.close()
        for processes in (self._renderers, self._constraint_worker):
            if processes is not None:
                processes.close()
        try:
            self._loop.close()
        finally:
            if self._observers is not None:
                self._observers.close()
        try:
            if self._encoder is not None:
                self._encoder.close()
        finally:
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _followed(params: SamplingParams, claims: SamplerClaims, name: str) -> SamplingParams:
    """Return a model's defaults as far as its sampler follows them."""
    made = followed(params, claims.ignores)
    idle = sorted(n for n in claims.ignores if getattr(made, n) != getattr(params, n))
    if idle:
        told = ", ".join(idle)
        log.warning("model %r: its sampler does not follow the default of %s", name, told)
    return made


def _shown_images(prompt: Prompt, pages: Seq[int | None]) -> dict[int, ShownImage]:
    """Return how images are shown, by their places among the media; keeps none of their arrays."""
    slots = ((place, slot) for place, slot in enumerate(prompt.media) if slot.kind == "image")
    return {
        place: ShownImage(slot.num_features, is_cached=True, transform=slot.transform, page=page)
        for (place, slot), page in zip(slots, chain(pages, repeat(None)), strict=False)
    }


def _demand(prompt: Prompt, sequences: Seq[Sequence]) -> Demand:
    num_answer_tokens = sum(sequence.max_tokens for sequence in sequences)
    guide = sequences[0].guide if sequences else None
    return Demand(
        len(prompt),
        _image_tokens(prompt),
        num_answer_tokens,
        len(sequences),
        () if guide is None else guide.unconstrained,
    )


def _image_tokens(prompt: Prompt) -> tuple[int, ...]:
    return tuple(slot.num_features for slot in prompt.media if slot.kind == "image")


def modalities_of(encoder: MediaEncoder | None) -> tuple[str, ...]:
    """Return what messages may hold: texts, then images, then other media by name."""
    kinds = frozenset[str]() if encoder is None else encoder.media_kinds
    return ("text", *sorted(kinds, key=lambda kind: (kind != "image", kind)))


def _precision_of(encoder: object) -> str:
    return encoder.precision if isinstance(encoder, StatesPrecision) else ""
