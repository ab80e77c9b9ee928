"""The Python API of a model: questions in, answers, vectors and scores out.

A convenience layer over a runner: it builds requests from texts and images, and reads their
streams. The runner runs the requests; a server does not use this module.
"""

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence as Seq,
)
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from vlmkit.checkpoints.pooling import Vector
from vlmkit.errors import EngineError, RequestError
from vlmkit.inputs.conversations import conversation
from vlmkit.inputs.images import Shown, for_owner, listed, shown_part
from vlmkit.interfaces.runner import AnswerStream, Runner, RunnerFacts
from vlmkit.running.pipeline.ordered_answers import OrderedAnswers, Result
from vlmkit.running.prompting.request_fields import plain_values
from vlmkit.types.completion import Completion
from vlmkit.types.constraint import Constraint
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.media import FilePart, MediaPart, MediaSource, media_part
from vlmkit.types.message import ImagePart, Message
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.score import Score

if TYPE_CHECKING:
    from vlmkit.kit.image_fetcher import ImageFetcher

T = TypeVar("T")
Turn = Message | Mapping[str, Any]
Prompt = str | Turn | Seq[Turn]
"""A question, or a conversation of messages or dictionaries as in OpenAI's API."""
Images = Shown | Seq[Shown]
Media = MediaSource | Seq[MediaSource]
RequestInput = Prompt | tuple[Prompt, Images] | Request
"""A prompt, a prompt with its images, or a request."""


class Model:
    """A loaded model, which owns its runner. Close it, or use it in a ``with`` statement.

    Args:
        runner: the runner that answers the requests.
        fetcher: fetches images by ``http(s)`` URL; such images are refused when None.
    """

    def __init__(self, runner: Runner, fetcher: "ImageFetcher | None" = None) -> None:
        self.runner = runner
        self._is_closed = False
        self._fetcher = fetcher

    def __repr__(self) -> str:
        facts = self.facts
        max_tokens = facts.limits.max_sequence_tokens
        return f"Model({facts.name!r}, takes {' and '.join(facts.modalities)}, {max_tokens} tokens)"

    @property
    def facts(self) -> RunnerFacts:
        """The constant properties of the model: its name, limits, defaults and bounds."""
        return self.runner.facts

    def generate(
        self,
        prompt: Prompt,
        *,
        images: Images = (),
        media: Media = (),
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Completion:
        """Answer a question, or continue a conversation, and wait for the whole answer.

        Args:
            prompt: a question, or messages, also as dictionaries as in OpenAI's API.
            images: one or several images for the question. Each is a path, bytes, a PIL image, an
                array, or a ``data:`` or ``file:`` URL; ``http(s)`` URLs need ``fetch.enabled``. A
                :class:`vlmkit.types.message.ImagePart` also sets the size. A media loader opens
                other files, such as the pages of a PDF file.
            media: one or several media of other kinds, such as sounds: paths or bytes of files that
                a media loader opens, or :class:`vlmkit.types.media.MediaPart` objects.
            constraint: the constraint of the answer; see :mod:`vlmkit.types.constraint`.
            fields: values of plugins' request fields, by name.
            **params: fields of :class:`vlmkit.SamplingParams`; ``stop`` may be one text.

        Raises:
            RequestError: an argument or an image is invalid.
        """
        request = self.request(
            prompt, images=images, media=media, constraint=constraint, fields=fields, **params
        )
        return self.submit(request).result()

    def stream(
        self,
        prompt: Prompt,
        *,
        images: Images = (),
        media: Media = (),
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Iterator[str]:
        """Yield the answer's text as it is generated; arguments as for :meth:`generate`."""
        request = self.request(
            prompt, images=images, media=media, constraint=constraint, fields=fields, **params
        )
        for chunk in self.submit(request):
            if text := chunk.text:
                yield text

    async def agenerate(
        self,
        prompt: Prompt,
        *,
        images: Images = (),
        media: Media = (),
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
        prompt: Prompt,
        *,
        images: Images = (),
        media: Media = (),
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> AsyncIterator[str]:
        """Yield the answer's text as it is generated, without blocking the event loop."""
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

    def generate_many(
        self,
        requests: Iterable[RequestInput],
        *,
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Iterator[Result]:
        """Answer many requests, and yield their results in order.

        The engine computes as many at once as it can. Requests are read as they are needed, by the
        calling thread, so there may be any number of them. The error of a request is its result,
        and the others continue. Closing the iterator aborts the requests in progress.

        Args:
            requests: each is a prompt, a tuple of a prompt and its images, or a
                :class:`vlmkit.Request`. A conversation must be a list.
            constraint: the constraint of each answer.
            fields: values of plugins' request fields, by name.
            **params: fields of :class:`vlmkit.SamplingParams`. A :class:`vlmkit.Request` keeps its
                own, and its constraint and fields.

        Yields:
            a completion, or the :class:`vlmkit.VlmkitError` of this request.

        Raises:
            RequestError: a parameter is invalid.
            EngineFailed: the engine failed for good.
            EngineError: the model is closed.
        """
        return self._while_open(self._many(constraint, fields, params).results(requests))

    def agenerate_many(
        self,
        requests: Iterable[RequestInput] | AsyncIterable[RequestInput],
        *,
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> AsyncIterator[Result]:
        """Answer many requests without blocking the event loop; as :meth:`generate_many`.

        The requests may also be an asynchronous iterable.
        """
        return self._awhile_open(self._many(constraint, fields, params).aresults(requests))

    def _many(
        self,
        constraint: Constraint | None,
        fields: Mapping[str, Any] | None,
        params: Mapping[str, Any],
    ) -> OrderedAnswers[RequestInput]:
        self._refuse_closed()
        self.params(**params)  # an invalid one is an error before any request
        make = partial(self._request_of, constraint=constraint, fields=fields, **params)
        return OrderedAnswers(self.runner, make, self.submit)

    def _request_of(self, given: RequestInput, **options: Any) -> Request:
        if isinstance(given, Request):
            return given
        prompt, images = given if isinstance(given, tuple) and len(given) == 2 else (given, ())
        return self.request(prompt, images=images, **options)

    def _while_open(self, results: Generator[Result, None, None]) -> Iterator[Result]:
        with closing(results):
            for result in results:
                self._refuse_closed()
                yield result

    async def _awhile_open(self, results: AsyncGenerator[Result, None]) -> AsyncIterator[Result]:
        async with aclosing(results):
            async for result in results:
                self._refuse_closed()
                yield result

    def embed(
        self,
        texts: Seq[Prompt],
        *,
        images: Seq[Images] = (),
    ) -> list[Vector]:
        """Return a vector ``[hidden]`` for each text, pooled as the checkpoint specifies.

        Args:
            texts: plain texts, to which the tokenizer adds its special tokens. A text with images
                or a list of messages goes through the chat template.
            images: one or several images for each text; empty, or as long as ``texts``.

        Raises:
            RequestError: an argument is invalid, a text is too long, or this engine returns no
                vectors.
            CheckpointError: the checkpoint's pooling is not supported.
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
        texts: Seq[Prompt],
        *,
        images: Seq[Images] = (),
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
        prompt: Prompt,
        continuations: Seq[str],
        *,
        images: Images = (),
    ) -> list[Score]:
        """Return the likelihood of each continuation as the model's answer to a prompt.

        Args:
            prompt: a question, or messages.
            continuations: texts, each scored separately.
            images: images for the question.

        Raises:
            RequestError: an argument is invalid, or prompt and continuation are too long.
        """
        request = self._score_request(prompt, continuations, images)
        return _scores(continuations, self.submit(request).result())

    async def ascore(
        self,
        prompt: Prompt,
        continuations: Seq[str],
        *,
        images: Images = (),
    ) -> list[Score]:
        """Score without blocking the event loop; arguments as for :meth:`score`."""
        request = await asyncio.to_thread(self._score_request, prompt, continuations, images)
        return _scores(continuations, await (await self.asubmit(request)).aresult())

    def _embed_request(self, text: Prompt, images: Images) -> Request:
        if isinstance(text, str) and not listed(images):
            return Request(text=text, task="embed")
        return replace(self.request(text, images=images), task="embed", params=None)

    def _score_request(self, prompt: Prompt, continuations: Seq[str], images: Images) -> Request:
        request = self.request(prompt, images=images)
        continuations = _listed(continuations, "continuations")
        if not continuations:
            raise RequestError("continuations are empty", param="continuations")
        return replace(request, task="score", continuations=continuations, params=None)

    def request(
        self,
        prompt: Prompt,
        *,
        images: Images = (),
        media: Media = (),
        constraint: Constraint | None = None,
        fields: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Request:
        """Return a request for a question or messages; arguments as for :meth:`generate`.

        Raises:
            RequestError: an argument or an image is invalid.
        """
        bounds = self.facts.bounds
        shown, others = listed(images), listed(media)
        if isinstance(prompt, str):
            parts: list[ImagePart | FilePart | MediaPart] = [self._shown(image) for image in shown]
            parts += [media_part(source, bounds.max_media_bytes) for source in others]
            messages = [Message.of("user", prompt, media=parts)]
        elif shown or others:
            name = "images" if shown else "media"
            raise RequestError(f"put the {name} into the messages", param=name)
        else:
            messages = conversation(prompt, self._shown)
        return Request(
            messages=messages,
            params=self.params(**params),
            fields=plain_values(fields or {}),
            constraint=constraint,
        )

    def _shown(self, source: Any, options: ImageOptions = PLAIN_IMAGE) -> ImagePart | FilePart:
        return shown_part(source, self.facts.bounds, self._fetcher, options)

    def params(self, **values: Any) -> SamplingParams:
        """Return the model's default sampling parameters with some values replaced.

        Raises:
            RequestError: a name is unknown or a value out of range.
        """
        if isinstance(stop := values.get("stop"), str):
            values["stop"] = [stop]
        return self.facts.defaults.replaced(values)

    def submit(self, request: Request) -> AnswerStream:
        """Start a request and return the stream of its answer.

        Raises:
            RequestError: the request is invalid or too long, or the queue is full.
            EngineError: the model is closed.
        """
        self._refuse_closed()
        _refuse_other(request)
        with for_owner(request.messages):
            return self.runner.submit(request)

    async def asubmit(self, request: Request) -> AnswerStream:
        """Start a request without blocking the event loop; return when it is accepted.

        Raises:
            RequestError: the request is invalid or too long, or the queue is full.
            EngineError: the model is closed.
        """
        self._refuse_closed()
        _refuse_other(request)
        with for_owner(request.messages):
            return await self.runner.asubmit(request)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise EngineError(
                f"model {self.facts.name!r} is closed",
                hint="load it again, or ask it inside of its with statement",
            )

    def stats(self) -> RunnerStats:
        """Return statistics for monitoring."""
        return self.runner.stats()

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the running ones.

        Returns:
            Whether all ended within ``timeout_s`` seconds.
        """
        return self.runner.drain(timeout_s)

    def close(self) -> None:
        """Abort all requests and free all memory; a second call does nothing."""
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


def _pairs(texts: Seq[Prompt], images: Seq[Images]) -> Iterator[tuple[Prompt, Images]]:
    """Return each text with its images."""
    texts = _listed(texts, "texts")
    if images and len(images) != len(texts):
        raise RequestError(f"images has {len(images)} lists for {len(texts)} texts", param="images")
    return zip(texts, images or [()] * len(texts), strict=True)


def _refuse_other(request: object) -> None:
    """Raise an error for a value that is not a request, such as a question."""
    if not isinstance(request, Request):
        raise RequestError(
            f"submit takes a Request, and this was {type(request).__name__}",
            hint='make one by model.request("question"), or ask by model.generate("question")',
        )


def _listed(texts: Seq[T], name: str) -> Seq[T]:
    if isinstance(texts, str):
        raise RequestError(f"{name} must be a list, also for one text", param=name)
    given: object = texts
    if not isinstance(given, Seq):
        was = type(given).__name__
        raise RequestError(f"{name} must be a list of texts, and was {was}", param=name)
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
