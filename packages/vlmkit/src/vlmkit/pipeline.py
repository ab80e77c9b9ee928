"""One running model: the five components tied together.

The server, the command line and the Python API speak to a pipeline and to nothing below it. A
pipeline turns a request into sequences, hands them to its loop and gives back a stream; it decides
nothing about scheduling and computes nothing.
"""

import asyncio
import itertools
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from types import TracebackType
from typing import Annotated, Any, ParamSpec, Self, TypeVar

import msgspec

from vlmkit.channel import Channel
from vlmkit.completion import Completion
from vlmkit.errors import ConfigError, OutOfMemory, PromptTooLong, RequestError
from vlmkit.feature_cache import FeatureCache
from vlmkit.image import Image, ImageLimits, ImageSource
from vlmkit.job import Job
from vlmkit.loop import Loop, closing
from vlmkit.message import Message, images_of, turns
from vlmkit.prompt import Prompt
from vlmkit.protocols import Engine, Sampler, Scheduler, Tokenizer, VisionEncoder
from vlmkit.request import Request
from vlmkit.sampler import ArraySampler
from vlmkit.sampling import SamplingParams, sampling_params
from vlmkit.scheduler import ContinuousScheduler
from vlmkit.sequence import Sequence
from vlmkit.stream import Stream
from vlmkit.text import AnswerText

Positive = Annotated[int, msgspec.Meta(ge=1)]
P = ParamSpec("P")
T = TypeVar("T")


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one pipeline.

    Attributes:
        max_images: images of one request.
        max_output_tokens: most tokens of one answer, whatever a request asks; null leaves that
            to the context.
        max_unread_tokens: chunks a slow reader may have unread before its request is held.
        feature_cache_bytes: memory for features of images that were seen before; 0 keeps none.
        num_workers: threads that tokenize and preprocess images.
        images: what pictures are refused.
    """

    max_images: Positive = 16
    max_output_tokens: Positive | None = None
    max_unread_tokens: Positive = 256
    feature_cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 256 * 2**20
    num_workers: Positive = 4
    images: ImageLimits = ImageLimits()


@dataclass(frozen=True, slots=True)
class PipelineStats:
    """A pipeline's state and what it has done since it started."""

    num_running: int
    num_waiting: int
    num_feature_hits: int
    num_feature_misses: int
    counters: dict[str, int]


class Pipeline:
    """One running model.

    Assemble one by hand from components, or let :func:`vlmkit.load` build one from a model's name.
    Close it, or use it in a ``with`` statement: it owns a thread and the engine's memory.

    Args:
        tokenizer: the model's text side.
        engine: the language model.
        vision_encoder: None for a model without images.
        scheduler: the built-in one when None.
        sampler: the built-in one when None.
        name: how the server lists it.
        defaults: sampling parameters of requests that state none.
        settings: bounds.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        engine: Engine,
        vision_encoder: VisionEncoder | None = None,
        scheduler: Scheduler | None = None,
        sampler: Sampler | None = None,
        name: str = "model",
        defaults: SamplingParams | None = None,
        settings: PipelineSettings | None = None,
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.settings = settings or PipelineSettings()
        self.defaults = defaults or SamplingParams()
        self.limits = engine.limits
        self._engine = engine
        self._encoder = vision_encoder
        self._features = FeatureCache(self.settings.feature_cache_bytes)
        # Some checkpoints name tokens that the model's output has no column for.
        self._banned_ids = tuple(sorted(filter(self._is_in_vocabulary, tokenizer.banned_ids)))
        self._eos_ids = frozenset(filter(self._is_in_vocabulary, tokenizer.eos_ids))
        self._ids = itertools.count()
        self._is_closed = False
        self._closing = threading.Lock()
        self._workers = ThreadPoolExecutor(self.settings.num_workers, "vlmkit-prompt")
        if self.limits.capacity_tokens < self.limits.max_sequence_tokens:
            raise ConfigError(
                f"the cache of {self.limits.capacity_tokens} tokens does not hold one sequence "
                f"of {self.limits.max_sequence_tokens}",
                hint="raise the engine's cache or lower its max_sequence_tokens",
            )
        self._loop = Loop(
            engine=engine,
            encoder=vision_encoder,
            scheduler=scheduler or ContinuousScheduler(),
            sampler=sampler or ArraySampler(),
            features=self._features,
        )

    # One request.

    def submit(self, request: Request) -> Stream:
        """Start a request in this thread; its answer comes through the stream.

        Raises:
            RequestError: the request is wrong, too long, or the queue is full.
            OutOfMemory: this machine has no room for its prompt now.
        """
        started = time.perf_counter()
        params = self._checked_params(request)
        prompt = self._prompt(request)
        sequences = self._sequences(request, prompt, params)
        channel = Channel(
            num_choices=params.n,
            max_unread_tokens=self.settings.max_unread_tokens,
            prompt_s=time.perf_counter() - started,
        )
        jobs = [
            Job(
                sequence,
                AnswerText(self.tokenizer.stream(), params.stop, params.min_tokens),
                channel,
                index,
            )
            for index, sequence in enumerate(sequences)
        ]
        self._loop.submit(jobs)
        return Stream(
            request.id or f"req-{secrets.token_hex(8)}",
            channel,
            prompt_tokens=len(prompt),
            image_tokens=tuple(slot.num_features for slot in prompt.images),
            abort=self._loop.abort,
            resume=self._loop.wake,
        )

    async def asubmit(self, request: Request) -> Stream:
        """Start a request: its prompt is made in a worker thread, of which there are few.

        Returns when the scheduler took the request.

        Raises:
            RequestError: the request is wrong, too long, or the queue is full.
        """
        stream = await self.in_worker(self.submit, request)
        try:
            await stream.accepted()
        except BaseException:
            stream.abort()
            raise
        return stream

    async def in_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in this pipeline's worker threads, of which there are few.

        A stream that it made is aborted if the caller is cancelled meanwhile.

        Raises:
            EngineError: the pipeline closed before the function's turn came.
        """
        try:
            future = self._workers.submit(self._unless_closed, partial(function, *args, **kwargs))
        except RuntimeError as error:  # the workers are gone
            raise closing() from error
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.cancel()
            future.add_done_callback(_abort_result)
            raise

    def _unless_closed(self, run: Callable[[], T]) -> T:
        if self._is_closed:
            raise closing()
        return run()

    # Convenience for people who write Python.

    def generate(
        self, prompt: str | Seq[Message], *, images: Seq[ImageSource] = (), **params: Any
    ) -> Completion:
        """Answer a question, or go on with a conversation, and wait for the whole answer.

        Args:
            prompt: a question, or messages.
            images: pictures to show with the question: paths, bytes, PIL images or arrays.
            **params: fields of :class:`vlmkit.SamplingParams`.
        """
        return self.submit(self.request(prompt, images=images, **params)).result()

    def stream(
        self, prompt: str | Seq[Message], *, images: Seq[ImageSource] = (), **params: Any
    ) -> Iterator[str]:
        """Yield the answer's text as it comes; arguments as for :meth:`generate`."""
        for chunk in self.submit(self.request(prompt, images=images, **params)):
            if chunk.text:
                yield chunk.text

    async def agenerate(
        self, prompt: str | Seq[Message], *, images: Seq[ImageSource] = (), **params: Any
    ) -> Completion:
        """Answer without blocking the event loop; arguments as for :meth:`generate`."""
        request = await self.in_worker(self.request, prompt, images=images, **params)
        return await (await self.asubmit(request)).aresult()

    async def astream(
        self, prompt: str | Seq[Message], *, images: Seq[ImageSource] = (), **params: Any
    ) -> AsyncIterator[str]:
        """Yield the answer's text as it comes, without blocking the event loop."""
        request = await self.in_worker(self.request, prompt, images=images, **params)
        async for chunk in await self.asubmit(request):
            if chunk.text:
                yield chunk.text

    def request(
        self, prompt: str | Seq[Message], *, images: Seq[ImageSource] = (), **params: Any
    ) -> Request:
        """Make a request from a question or messages; arguments as for :meth:`generate`.

        Raises:
            RequestError: an argument is not what was expected, an image included.
        """
        if isinstance(images, str | bytes):
            raise RequestError("images must be a list, also for one image", param="images")
        if isinstance(prompt, str):
            opened = [Image.open(image, self.settings.images) for image in images]
            messages: Seq[Message] = [Message.of("user", prompt, opened)]
        elif images:
            raise RequestError("put the images into the messages", param="images")
        else:
            messages = turns(prompt)
        return Request(messages=messages, params=self.params(**params))

    def params(self, **values: Any) -> SamplingParams:
        """Return the model's default sampling parameters with some values replaced.

        Raises:
            RequestError: a name is unknown or a value out of range.
        """
        merged = msgspec.to_builtins(self.defaults) | values
        return sampling_params(merged).checked()

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

    @property
    def takes_images(self) -> bool:
        """Whether there is a vision encoder."""
        return self._encoder is not None

    def stats(self) -> PipelineStats:
        """Return counters for monitoring."""
        return PipelineStats(
            self._loop.num_running,
            self._loop.num_waiting,
            self._features.num_hits,
            self._features.num_misses,
            asdict(self._loop.stats),
        )

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the present ones; tell whether all ended in time."""
        return self._loop.drain(timeout_s)

    def close(self) -> None:
        """Abort what runs, stop the loop and free all memory; harmless when done twice."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        self._workers.shutdown(wait=False)  # what waits there ends by itself, with an error
        self._loop.close()
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

    # From request to sequences.

    def _is_in_vocabulary(self, token_id: int) -> bool:
        return token_id < self.limits.vocab_size

    def _checked_params(self, request: Request) -> SamplingParams:
        params = (request.params or self.defaults).checked()
        wrong = next((i for i in params.logit_bias if not self._is_in_vocabulary(i)), None)
        if wrong is not None:
            raise RequestError(
                f"token id {wrong} is not in the vocabulary of {self.limits.vocab_size}",
                param="logit_bias",
            )
        return params

    def _prompt(self, request: Request) -> Prompt:
        num_images = sum(1 for _ in images_of(request.messages))
        if not request.messages:
            raise RequestError("messages is empty", param="messages")
        if num_images and self._encoder is None:
            raise RequestError(f"model {self.name!r} takes no images", param="messages")
        if num_images > self.settings.max_images:
            raise RequestError(
                f"{num_images} images are over the limit of {self.settings.max_images}",
                param="messages",
                code="too_many_images",
            )
        try:
            prompt = self.tokenizer.prompt(request.messages, tools=request.tools)
        except MemoryError as error:
            raise OutOfMemory("this prompt") from error
        if not prompt.token_ids:
            raise RequestError("the prompt has no tokens", param="messages")
        return prompt

    def _sequences(
        self, request: Request, prompt: Prompt, params: SamplingParams
    ) -> list[Sequence]:
        """Make one sequence for each choice; all but the first share the first one's prefill."""
        max_tokens = self._max_tokens(prompt, params)
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        leader: Sequence | None = None
        sequences = []
        for index in range(params.n):
            sequence = Sequence(
                id=f"{next(self._ids)}",
                prompt=prompt,
                params=params,
                seed=seed + index,
                max_tokens=max_tokens,
                eos_ids=self._eos_ids,
                banned_ids=self._banned_ids,
                tenant=request.tenant,
                priority=request.priority,
                leader=leader,
            )
            leader = leader or sequence
            sequences.append(sequence)
        return sequences

    def _max_tokens(self, prompt: Prompt, params: SamplingParams) -> int:
        """Return how many tokens may be generated; never silently fewer than were asked for.

        An answer that ends before the length that was asked for could not be told from a whole one
        that the client's own limit ended.
        """
        most, num_prompt = self.limits.max_sequence_tokens, len(prompt)
        room, bound = most - num_prompt, self.settings.max_output_tokens
        asked = params.max_tokens
        if asked is not None and bound is not None and asked > bound:
            raise RequestError(f"max_tokens is over the limit of {bound}", param="max_tokens")
        if room < 1:
            raise PromptTooLong(most, f"your messages resulted in {num_prompt} tokens")
        if asked is None:
            return room if bound is None else min(room, bound)
        if asked > room:
            raise PromptTooLong(
                most,
                f"you requested {num_prompt + asked} tokens ({num_prompt} in the messages, {asked} "
                "in the completion)",
                param="max_tokens",
            )
        return asked


def _abort_result(future: Any) -> None:
    """Stop a request whose asker went away while its prompt was being made."""
    if not future.cancelled() and future.exception() is None:
        result = future.result()
        if isinstance(result, Stream):
            result.abort()
