"""A model to program with: questions in, answers, vectors and scores out.

The comfortable face of a runner. It makes requests of what people write and reads streams for them;
how a request is run is the runner's business, and a server needs none of this.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence as Seq
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from vlmkit.ask.completion import Completion
from vlmkit.ask.constraint import Constraint
from vlmkit.ask.image import Image, ImageSource
from vlmkit.ask.media import MediaSource, media_part
from vlmkit.ask.message import ImagePart, Message, turns
from vlmkit.ask.request import Request
from vlmkit.ask.runner_stats import RunnerStats
from vlmkit.ask.sampling import SamplingParams
from vlmkit.ask.score import Score
from vlmkit.errors import EngineError, RequestError
from vlmkit.kit.pooling import Vector
from vlmkit.kit.request_fields import plain_values
from vlmkit.seams.runner import AnswerStream, Runner, RunnerFacts

T = TypeVar("T")
Shown = ImageSource | ImagePart


class Model:
    """A running model. Close it, or use it in a ``with`` statement: it owns its runner.

    Args:
        runner: answers the requests.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._is_closed = False

    @property
    def facts(self) -> RunnerFacts:
        """The model's name, limits, defaults and bounds."""
        return self.runner.facts

    def generate(
        self,
        prompt: str | Seq[Message],
        *,
        images: Seq[Shown] = (),
        media: Seq[MediaSource] = (),
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Completion:
        """Answer a question, or go on with a conversation, and wait for the whole answer.

        Args:
            prompt: a question, or messages.
            images: pictures to show with the question: paths, bytes, PIL images or arrays; or a
                :class:`vlmkit.ask.message.ImagePart`, which also says how large it is shown.
            media: sounds and the like to go with it: paths or bytes of files that a media loader
                opens, or a :class:`vlmkit.ask.media.MediaPart`.
            constraint: what the answer must keep to; see :mod:`vlmkit.ask.constraint`.
            fields: what it says by fields that plugins added to requests, by their names.
            **params: fields of :class:`vlmkit.SamplingParams`.
        """
        request = self.request(
            prompt, images=images, media=media, constraint=constraint, fields=fields, **params
        )
        return self.submit(request).result()

    def stream(
        self,
        prompt: str | Seq[Message],
        *,
        images: Seq[Shown] = (),
        media: Seq[MediaSource] = (),
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Iterator[str]:
        """Yield the answer's text as it comes; arguments as for :meth:`generate`."""
        request = self.request(
            prompt, images=images, media=media, constraint=constraint, fields=fields, **params
        )
        for chunk in self.submit(request):
            if text := chunk.text:
                yield text

    async def agenerate(
        self,
        prompt: str | Seq[Message],
        *,
        images: Seq[Shown] = (),
        media: Seq[MediaSource] = (),
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Completion:
        """Answer without blocking the event loop; arguments as for :meth:`generate`."""
        request = await asyncio.to_thread(
            self.request,
            prompt,
            images=images,
            media=media,
            constraint=constraint,
            fields=fields,
            **params,
        )
        return await (await self.asubmit(request)).aresult()

    async def astream(
        self,
        prompt: str | Seq[Message],
        *,
        images: Seq[Shown] = (),
        media: Seq[MediaSource] = (),
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> AsyncIterator[str]:
        """Yield the answer's text as it comes, without blocking the event loop."""
        request = await asyncio.to_thread(
            self.request,
            prompt,
            images=images,
            media=media,
            constraint=constraint,
            fields=fields,
            **params,
        )
        async for chunk in await self.asubmit(request):
            if text := chunk.text:
                yield text

    def embed(
        self,
        texts: Seq[str | Seq[Message]],
        *,
        images: Seq[Seq[Shown]] = (),
    ) -> list[Vector]:
        """Return a vector ``[hidden]`` for each text, pooled as the checkpoint says.

        Args:
            texts: plain texts, to which the tokenizer adds what it adds to any text. One with
                pictures, and a list of messages, goes through the chat template.
            images: pictures for each text: as many lists as there are texts, or none.

        Raises:
            RequestError: an argument is wrong, a text is too long, or this engine gives no vectors.
            CheckpointError: the checkpoint's way of pooling is not supported.
        """
        streams: deque[AnswerStream] = deque()
        vectors = []
        for text, pictures in _pairs(texts, images):
            if len(streams) == self.facts.limits.max_sequences:
                vectors.append(_vector(streams.popleft().result()))
            streams.append(self.submit(self._embed_request(text, pictures)))
        return vectors + [_vector(stream.result()) for stream in streams]

    async def aembed(
        self,
        texts: Seq[str | Seq[Message]],
        *,
        images: Seq[Seq[Shown]] = (),
    ) -> list[Vector]:
        """Embed texts without blocking the event loop; arguments as for :meth:`embed`."""
        streams: deque[AnswerStream] = deque()
        vectors = []
        for text, pictures in _pairs(texts, images):
            if len(streams) == self.facts.limits.max_sequences:
                vectors.append(_vector(await streams.popleft().aresult()))
            request = await asyncio.to_thread(self._embed_request, text, pictures)
            streams.append(await self.asubmit(request))
        return vectors + [_vector(await stream.aresult()) for stream in streams]

    def score(
        self,
        prompt: str | Seq[Message],
        continuations: Seq[str],
        *,
        images: Seq[Shown] = (),
    ) -> list[Score]:
        """Return how likely each continuation is as the model's answer to a prompt.

        Args:
            prompt: a question, or messages.
            continuations: texts, each scored by itself.
            images: pictures to show with the question.

        Raises:
            RequestError: an argument is wrong, or prompt and continuation are too long.
        """
        request = self._score_request(prompt, continuations, images)
        return _scores(continuations, self.submit(request).result())

    async def ascore(
        self,
        prompt: str | Seq[Message],
        continuations: Seq[str],
        *,
        images: Seq[Shown] = (),
    ) -> list[Score]:
        """Score without blocking the event loop; arguments as for :meth:`score`."""
        request = await asyncio.to_thread(self._score_request, prompt, continuations, images)
        return _scores(continuations, await (await self.asubmit(request)).aresult())

    def _embed_request(self, text: str | Seq[Message], images: Seq[Shown]) -> Request:
        if isinstance(text, str) and not images:
            return Request(text=text, task="embed")
        return replace(self.request(text, images=images), task="embed", params=None)

    def _score_request(
        self, prompt: str | Seq[Message], continuations: Seq[str], images: Seq[Shown]
    ) -> Request:
        request = self.request(prompt, images=images)
        continuations = _listed(continuations, "continuations")
        if not continuations:
            raise RequestError("continuations are empty", param="continuations")
        return replace(request, task="score", continuations=continuations, params=None)

    def request(
        self,
        prompt: str | Seq[Message],
        *,
        images: Seq[Shown] = (),
        media: Seq[MediaSource] = (),
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Request:
        """Make a request from a question or messages; arguments as for :meth:`generate`.

        Raises:
            RequestError: an argument is not what was expected, an image included.
        """
        bounds = self.facts.bounds
        for name, given in {"images": images, "media": media}.items():
            if isinstance(given, str | bytes):
                raise RequestError(f"{name} must be a list, also for one of them", param=name)
            if given and not isinstance(prompt, str):
                raise RequestError(f"put the {name} into the messages", param=name)
        if isinstance(prompt, str):
            opened = [
                image if isinstance(image, ImagePart) else Image.open(image, bounds.images)
                for image in images
            ]
            parts = [media_part(source, bounds.max_media_bytes) for source in media]
            messages: Seq[Message] = [Message.of("user", prompt, opened, parts)]
        else:
            messages = turns(prompt)
        return Request(
            messages=messages,
            params=self.params(**params),
            fields=plain_values(fields or {}),
            constraint=constraint,
        )

    def params(self, **values: Any) -> SamplingParams:
        """Return the model's default sampling parameters with some values replaced.

        Raises:
            RequestError: a name is unknown or a value out of range.
        """
        return self.facts.defaults.replaced(values)

    # A request that is made already, and the end.

    def submit(self, request: Request) -> AnswerStream:
        """Start a request; its answer comes through the stream.

        Raises:
            RequestError: the request is wrong, too long, or the queue is full.
            EngineError: the model is closed.
        """
        self._refuse_closed()
        return self.runner.submit(request)

    async def asubmit(self, request: Request) -> AnswerStream:
        """Start a request without blocking the event loop; returns when it was accepted.

        Raises:
            RequestError: the request is wrong, too long, or the queue is full.
            EngineError: the model is closed.
        """
        self._refuse_closed()
        return await self.runner.asubmit(request)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise EngineError(
                f"model {self.facts.name!r} is closed",
                hint="load it again, or ask it inside of its with statement",
            )

    def stats(self) -> RunnerStats:
        """Return counters for monitoring."""
        return self.runner.stats()

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the present ones; tell whether all ended in time."""
        return self.runner.drain(timeout_s)

    def close(self) -> None:
        """Abort what runs and free all memory; harmless when done twice."""
        self._is_closed = True
        self.runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _pairs(
    texts: Seq[str | Seq[Message]], images: Seq[Seq[Shown]]
) -> Iterator[tuple[str | Seq[Message], Seq[Shown]]]:
    """Return each text with its pictures."""
    texts = _listed(texts, "texts")
    if images and len(images) != len(texts):
        raise RequestError(f"images has {len(images)} lists for {len(texts)} texts", param="images")
    return zip(texts, images or [()] * len(texts), strict=True)


def _listed(texts: Seq[T], name: str) -> Seq[T]:
    if isinstance(texts, str):
        raise RequestError(f"{name} must be a list, also for one text", param=name)
    return texts


def _vector(done: Completion) -> Vector:
    vector = done.choices[0].embedding
    if vector is None:  # aborted
        raise _cut_off()
    return vector


def _cut_off() -> EngineError:
    return EngineError("the request was cut off", hint="the model was closed meanwhile")


def _scores(continuations: Seq[str], done: Completion) -> list[Score]:
    if any(choice.finish_reason == "abort" for choice in done.choices):
        raise _cut_off()
    pairs = zip(continuations, done.choices, strict=True)
    return [Score(text, tuple(choice.samples)) for text, choice in pairs]
