"""One running model: its components tied together.

A pipeline turns a request into sequences, submits them to its loop and returns a stream. It
schedules nothing and computes nothing. Servers and commands hold it as a
:class:`vlmkit.interfaces.runner.Runner`; :class:`vlmkit.Model` is the same for Python programs.
"""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence as Seq
from dataclasses import asdict
from functools import cache, partial
from itertools import chain, repeat
from types import TracebackType
from typing import Self, Unpack

from vlmkit.checkpoints.pooling import Pooling
from vlmkit.errors import ConfigError, PluginError, RequestError
from vlmkit.interfaces.engine import CountsRoom, CountsSteps
from vlmkit.interfaces.media_encoder import CountsEncodings, MediaEncoder, StatesPrecision
from vlmkit.interfaces.observer import RequestFacts
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.runner import CONSTRAINT, Admit, RunnerFacts
from vlmkit.interfaces.sampler import FOLLOWED, Sampler, SamplerClaims
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.constraints.compiled import Constraints, MakeCompiler
from vlmkit.running.engine_loop.encoder_threads import max_concurrency_of
from vlmkit.running.engine_loop.feature_cache import FeatureCache
from vlmkit.running.engine_loop.loop import Loop
from vlmkit.running.engine_loop.step_runner import LoopComponents
from vlmkit.running.engine_loop.stream import Channel, Stream
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.running.pipeline.answer_constraints import AnswerConstraints, SpecialTokens
from vlmkit.running.pipeline.cache_scopes import CacheScopes
from vlmkit.running.pipeline.components import Components
from vlmkit.running.pipeline.request_preparation import RequestPreparation
from vlmkit.running.prompting.image_decoding import ImageDecoder
from vlmkit.running.prompting.image_loader import ImageLoader
from vlmkit.running.prompting.media import MediaPreparation
from vlmkit.running.prompting.parameters import without_ignored
from vlmkit.running.prompting.prepared_images import PreparedImages
from vlmkit.running.prompting.prompt_builder import (
    LocalPromptBuilder,
    PromptBuilder,
    ReusingPromptBuilder,
)
from vlmkit.running.prompting.renderers.pool import RendererPromptBuilder
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
    it owns threads and the engine's memory.

    Args:
        name: what the server lists it as.
        defaults: sampling parameters of requests that state none.
        settings: bounds.
        **components: what it is assembled from: see :class:`.components.Components`.

    Raises:
        ConfigError: the engine's cache does not hold one sequence of the greatest length.
    """

    def __init__(
        self,
        *,
        name: str = "model",
        defaults: SamplingParams | None = None,
        settings: PipelineSettings | None = None,
        **components: Unpack[Components],
    ) -> None:
        tokenizer, engine = components["tokenizer"], components["engine"]
        encoder, constraint = components.get("media_encoder"), components.get("constraint")
        sampler = components.get("sampler") or ArraySampler()
        names = components.get("component_names", UNKNOWN)
        pooling = cache(components.get("pooling", Pooling))
        loaders = components.get("media_loaders")
        if loaders is None:
            loaders = {"image": ImageLoader(), "tiff": TiffLoader()}
        fields = tuple(components.get("request_fields", ()))
        max_concurrency_of(encoder)  # an invalid one is an error before any thread starts
        claims = claims_of(sampler)
        self.facts = facts = RunnerFacts(
            name=name,
            limits=engine.limits,
            modalities=modalities_of(encoder),
            eos_ids=tokenizer.eos_ids,
            defaults=_supported(defaults or SamplingParams(), claims, name),
            bounds=settings or PipelineSettings(),
            options=tokenizer.honours.union(() if constraint is None else (CONSTRAINT,)),
            media_loaders=tuple(loaders),
            sampler=claims,
            request_fields={field.name: facts_of(field) for field in fields},
            encoder_precision=_precision_of(encoder),
        )
        self._tokenizer = tokenizer
        self._engine = engine
        self._encoder = encoder
        self._features = FeatureCache(facts.bounds.feature_cache_bytes)
        self._other_models = components.get("other_models")
        self._renderers = renderers = components.get("renderers")
        self._constraint_worker = components.get("constraint_worker")
        self._images = PreparedImages(facts.bounds.image_cache_bytes)
        num_renderers = 0 if renderers is None else renderers.num
        self._workers = RequestWorkers(facts.bounds, num_renderers, self._images)
        num_at_once = max(1, facts.bounds.num_workers - 1)  # the last one is left to other requests
        prompts: PromptBuilder = LocalPromptBuilder(
            tokenizer,
            MediaPreparation(loaders, facts, names),
            ImageDecoder(self._workers.workers, num_at_once, facts.bounds.max_decoding_bytes),
            pooling,
            facts.limits,
            facts.bounds,
            names,
        )
        if renderers is not None:
            prompts = RendererPromptBuilder(prompts, renderers)
        self._prompts = ReusingPromptBuilder(prompts, self._images)
        self._preparation = RequestPreparation(
            tokenizer=tokenizer,
            prompts=self._prompts,
            engine=engine,
            facts=facts,
            pooling=pooling,
            constraints=self._answer_constraints(constraint, names),
            scopes=CacheScopes("" if encoder is None else encoder.identity, fields, names),
            names=names,
        )
        self._is_closed = False
        self._closing = threading.Lock()
        if facts.limits.capacity_tokens < facts.limits.max_sequence_tokens:
            raise ConfigError(
                f"the cache of {facts.limits.capacity_tokens} tokens does not hold one sequence "
                f"of {facts.limits.max_sequence_tokens}",
                hint="raise the engine's cache or lower its max_sequence_tokens",
            )
        observers = components.get("observers")
        self._observers = ObserverDispatch(observers, names) if observers else None
        self._loop = Loop(
            LoopComponents(
                engine=engine,
                encoder=encoder,
                scheduler=components.get("scheduler") or ContinuousScheduler(),
                sampler=sampler,
                proposer=components.get("proposer"),
                observers=self._observers,
                names=names,
            ),
            self._features,
            slow_s=facts.bounds.slow_step_s,
            stuck_s=facts.bounds.stuck_step_s,
        )

    def _answer_constraints(
        self, make: MakeCompiler | None, names: ComponentNames
    ) -> AnswerConstraints:
        """Return what limits answers; without a compiler it rejects requests with a constraint."""
        vocab_size = self.facts.limits.vocab_size
        special_tokens = SpecialTokens.of(self._tokenizer, vocab_size)
        constraints = None
        if make is not None:
            constraints = Constraints(
                make,
                self._tokenizer,
                vocab_size=vocab_size,
                eos_ids=special_tokens.eos_ids,
                banned_ids=special_tokens.banned_ids,
                max_bytes=self.facts.bounds.constraint_cache_bytes,
                worker=self._constraint_worker,
                component_names=names,
            )
        return AnswerConstraints(constraints, self._tokenizer, vocab_size, special_tokens, names)

    def prepare(self) -> None:
        """Make the constraint compiler, for which the first request with a constraint would wait.

        That can take seconds in which no other thread runs, so a server calls it before it is
        ready.

        Raises:
            VlmkitError: the compiler could not be made.
        """
        self._preparation.constraints.prepare()

    # One request.

    def submit(self, request: Request, admit: Admit | None = None) -> Stream:
        """Start a request in this thread and return the stream of its answer.

        Args:
            request: the request.
            admit: gets the request's demand in this thread, and may refuse it by an error.

        Raises:
            RequestError: the request is invalid, too long or not admitted, or the queue is full.
            OutOfMemory: this machine has no memory for its prompt now.
        """
        return self._workers.in_caller(partial(self._submit, admit, None), request)

    def _submit(
        self,
        admit: Admit | None,
        acceptance: "asyncio.Future[None] | None",
        request: Request,
        lease: DecodeLease,
    ) -> Stream:
        started = time.perf_counter()
        prepared = self._preparation.prepare(request, lease)
        params, prompt, sequences, pages, timings, sent, opened_pixels = prepared
        lease.track(prompt)
        if admit is not None:
            admit(_demand(prompt, sequences, opened_pixels))
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
            acceptance=acceptance,
        )
        self._loop.submit([self._preparation.job(s, channel, i) for i, s in enumerate(sequences)])
        return Stream(channel, prompt.token_ids, abort=self._loop.abort, resume=self._loop.wake)

    async def asubmit(self, request: Request, admit: Admit | None = None) -> Stream:
        """Start a request; one of a few worker threads builds its prompt.

        It returns when the scheduler has accepted the request. Cancelling the call cancels the
        request, whose work ends within a second.

        Args:
            request: the request.
            admit: gets the request's demand in that thread, and may refuse it by an error.

        Raises:
            RequestError: the request is invalid, too long or not admitted, or the queue is full.
            OutOfMemory: this machine has no memory for its prompt now.
        """
        acceptance = asyncio.get_running_loop().create_future()
        work = partial(self._submit, admit, acceptance)
        stream = await self._workers.in_worker(work, request, Stream.abort, until=acceptance)
        try:
            await stream.accepted()
        except BaseException:
            stream.abort()
            raise
        return stream

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return the tokens of a request's prompt, which a worker thread builds.

        Cancelling the call cancels that work.

        Raises:
            RequestError: the request is invalid.
            OutOfMemory: this machine has no memory for its images now.
            EngineError: the pipeline is closed.
        """
        return await self._workers.in_worker(self._prompts.tokens, request)

    def detokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens.

        Raises:
            RequestError: a token is not in the vocabulary.
        """
        num_known = max(self._tokenizer.vocab_size, self.facts.limits.vocab_size)
        if not all(0 <= token_id < num_known for token_id in token_ids):
            raise RequestError("a token is not in the vocabulary", param="token_ids")
        return self._tokenizer.decode(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token stands for; may be part of a character."""
        return self._tokenizer.token_bytes(token_id)

    def token_table(self) -> Seq[bytes]:
        """Return the bytes of every token by its id; none for an id that only the logits have."""
        num_known = self._tokenizer.vocab_size
        table = [self._tokenizer.token_bytes(token_id) for token_id in range(num_known)]
        return table + [b""] * (self.facts.limits.vocab_size - num_known)

    async def adetokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens as :meth:`detokenize` does, in a thread.

        Raises:
            RequestError: a token is not in the vocabulary.
        """
        return await asyncio.to_thread(self.detokenize, token_ids)

    # State.

    @property
    def is_ready(self) -> bool:
        """Whether requests can be served."""
        return self._loop.is_alive

    def on_failure(self, notify: Callable[[BaseException], None]) -> None:
        """Call a function with the reason when no request can be served any more.

        Every request has its error by then. The function runs in a thread of the pipeline and must
        not block; if the failure has happened already, it runs at once in this thread.
        """
        self._loop.on_failure(notify)

    @property
    def is_full(self) -> bool:
        """Whether a new request would be rejected because too many wait."""
        return self._loop.is_full

    def stats(self) -> RunnerStats:
        """Return counters for monitoring."""
        return RunnerStats(
            self._loop.num_running,
            self._loop.num_waiting,
            self._features.num_hits,
            self._features.num_misses,
            {
                **asdict(self._loop.stats),
                **self._image_counters(),
                **_counters_of(self._engine),
                **_counters_of(self._encoder),
            },
            {} if self._observers is None else self._observers.stats(),
            self._engine.num_free_tokens if isinstance(self._engine, CountsRoom) else None,
        )

    def _image_counters(self) -> dict[str, int]:
        images = self._images
        return {"num_image_hits": images.num_hits, "num_image_misses": images.num_misses}

    def drain(self, timeout_s: float) -> bool:
        """Reject new requests and wait for the present ones; return whether all ended in time."""
        return self._loop.drain(timeout_s)

    def close(self) -> None:
        """Abort every request, stop the loop and free all memory; a second call does nothing.

        Raises:
            EngineFailed: the engine hangs and was given up, so its memory cannot be freed.
        """
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        self._workers.close()
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
            try:
                self._engine.close()
            finally:
                if self._other_models is not None:
                    self._other_models.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def claims_of(sampler: Sampler) -> SamplerClaims:
    """Return which parameters a sampler ignores, as it states, and whether it is exact.

    Raises:
        PluginError: it names no sampling parameter, or states a value of another type.
    """
    ignores: object = getattr(sampler, "ignores", frozenset())
    is_exact: object = getattr(sampler, "is_exact", True)
    who = f"the sampler {type(sampler).__name__!r}"
    if not isinstance(ignores, frozenset | set) or not all(isinstance(n, str) for n in ignores):
        raise PluginError(f"{who} has ignores of type {type(ignores).__name__!r}, not a frozenset")
    if unknown := sorted(ignores - FOLLOWED):
        raise PluginError(
            f"{who} says that it ignores {unknown[0]!r}, which is not a sampler's to follow",
            hint=f"there are: {', '.join(sorted(FOLLOWED))}",
        )
    if not isinstance(is_exact, bool):
        raise PluginError(f"{who} has is_exact of type {type(is_exact).__name__!r}, not a bool")
    return SamplerClaims(frozenset(ignores), is_exact)


def _supported(params: SamplingParams, claims: SamplerClaims, name: str) -> SamplingParams:
    """Return a model's default parameters without those that its sampler ignores."""
    supported = without_ignored(params, claims.ignores)
    idle = sorted(n for n in claims.ignores if getattr(supported, n) != getattr(params, n))
    if idle:
        ignored = ", ".join(idle)
        log.warning("model %r: its sampler does not follow the default of %s", name, ignored)
    return supported


def _shown_images(prompt: Prompt, pages: Seq[int | None]) -> dict[int, ShownImage]:
    """Return how each image is shown, by its index among the media, without its arrays."""
    slots = ((place, slot) for place, slot in enumerate(prompt.media) if slot.kind == "image")
    return {
        place: ShownImage(slot.num_features, is_cached=True, transform=slot.transform, page=page)
        for (place, slot), page in zip(slots, chain(pages, repeat(None)), strict=False)
    }


def _demand(prompt: Prompt, sequences: Seq[Sequence], opened_pixels: int) -> Demand:
    num_answer_tokens = sum(sequence.max_tokens for sequence in sequences)
    guide = sequences[0].guide if sequences else None
    return Demand(
        len(prompt),
        _image_tokens(prompt),
        num_answer_tokens,
        len(sequences),
        () if guide is None else guide.unenforced,
        opened_pixels,
    )


def _image_tokens(prompt: Prompt) -> tuple[int, ...]:
    return tuple(slot.num_features for slot in prompt.media if slot.kind == "image")


def modalities_of(encoder: MediaEncoder | None) -> tuple[str, ...]:
    """Return what messages may contain: text, then images, then other media by name."""
    kinds = frozenset[str]() if encoder is None else encoder.media_kinds
    return ("text", *sorted(kinds, key=lambda kind: (kind != "image", kind)))


def _precision_of(encoder: object) -> str:
    return encoder.precision if isinstance(encoder, StatesPrecision) else ""


def _counters_of(component: object) -> dict[str, int]:
    """Return the counters of an engine or a media encoder, if it has some."""
    if isinstance(component, CountsSteps | CountsEncodings):
        return dict(component.counters())
    return {}
