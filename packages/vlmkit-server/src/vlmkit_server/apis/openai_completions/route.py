"""``POST /v1/completions``: completes plain texts, whole or streamed, with an optional echo."""

import asyncio
from collections.abc import Iterator, Sequence as Seq
from contextlib import contextmanager
from functools import partial
from typing import Any

from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import AnswerStream, Runner, RunnerFacts
from vlmkit.kit.runner_tokens import adetokenize
from vlmkit.types.completion import Choice, Chunk, Completion, Timings, Usage
from vlmkit.types.constraint import Constraint
from vlmkit.types.request import Request as RunnerRequest
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import MAX_CHOICES, SamplingParams
from vlmkit_server.apis.openai_chat.events import UsageEvents
from vlmkit_server.apis.openai_chat.prompt_logprobs import check_not_streamed
from vlmkit_server.apis.openai_chat.rendering import Rendered, rendered_pieces
from vlmkit_server.apis.openai_completions.answer import (
    Echo,
    TextAnswerOptions,
    TextAnswers,
    TextCompletion,
)
from vlmkit_server.apis.openai_completions.wire import (
    COMPLETIONS,
    RENDER_COMPLETIONS,
    CompletionRequest,
    RenderCompletionRequest,
)
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.conversation.merged_stream import MergedStream
from vlmkit_server.conversation.prompt_scorer import PromptScorer
from vlmkit_server.gather import in_order
from vlmkit_server.http.errors import OpenAiErrors
from vlmkit_server.interfaces.api import Route
from vlmkit_server.wire.answer_forms import requested_form
from vlmkit_server.wire.plain_prompts import (
    Plain,
    check_plain_size,
    plain_fields,
    plain_names,
    plain_texts,
    rename_param,
)
from vlmkit_server.wire.sampling import sampling_values

PATH = "/v1/completions"
DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionsApi(OpenAiErrors):
    """The completions API."""

    def routes(self, _host: Host) -> list[Route]:
        """Return the routes of plain texts."""
        return [
            Route(
                path=PATH,
                scope="chat",
                handler=complete,
                reader=COMPLETIONS,
                answer=TextCompletion,
                event="text_completion",
                has_timing=True,
            ),
            Route(
                path=f"{PATH}/render",
                scope="chat",
                handler=render_texts,
                reader=RENDER_COMPLETIONS,
                answer=list[Rendered],
                answers="prompt",
            ),
        ]


async def complete(exchange: Exchange, body: CompletionRequest) -> ASGIApp:
    """Complete texts."""
    if body.prompt_logprobs is not None:
        check_not_streamed(body.stream)
    runner = await exchange.lease(body.model)
    params = completion_params(body, runner.facts)
    prompts = _Prompts(exchange, body, runner, params)
    head = exchange.head("cmpl", runner)
    echoes = await prompts.echoes() if body.echo else []
    scores = await prompts.scores()
    stream: AnswerStream | MergedStream | _EmptyStream
    if body.echo and body.max_tokens == 0:
        stream = _EmptyStream(len(echoes) * params.n, sum(len(each.token_ids) for each in echoes))
        ids: list[Seq[int]] = [each.token_ids for each in echoes]
    else:
        streams = await prompts.submit()
        stream = streams[0] if len(streams) == 1 else MergedStream(streams)
        ids = [each.prompt_token_ids for each in streams]
    answer_options = TextAnswerOptions(
        end_token_ids=_end_token_ids(params, runner.facts),
        echoes=echoes,
        num_each=params.n,
        prompts=ids if body.return_token_ids else None,
        num_top=body.logprobs,
        scores=scores,
    )
    options = body.stream_options
    usage = UsageEvents(options, lambda: stream.usage)
    answers = TextAnswers(head, runner, len(ids) * params.n, answer_options, usage=usage)
    if body.stream:
        # In a thread, since a long prompt with its likeliest tokens takes seconds.
        await asyncio.to_thread(answers.encode_prompts)
        hides_sizes = bool(options and options.include_obfuscation)
        return exchange.stream_chunks(stream, answers, hides_sizes=hides_sizes)
    return exchange.whole_of(stream, answers.encode_whole)


async def render_texts(exchange: Exchange, body: RenderCompletionRequest) -> ASGIApp:
    """Return the prompts of plain texts."""
    runner = await exchange.lease(body.model)
    params = completion_params(body, runner.facts)
    prompts = await _Prompts(exchange, body, runner, params).rendered()
    return exchange.pieces(partial(_encode_all, prompts, runner))


class _EmptyStream:
    """The answer without tokens if a prompt is only echoed; each choice ends at once.

    Args:
        num_choices: the number of choices.
        prompt_tokens: the number of tokens of all prompts.
    """

    def __init__(self, num_choices: int, prompt_tokens: int) -> None:
        self.usage = Usage(prompt_tokens)
        self.timings = Timings()
        self._num_choices = num_choices
        self._is_read = False

    async def next_chunks(self) -> list[Chunk]:
        """Return the end of every choice, and an empty list after that."""
        if self._is_read:
            return []
        self._is_read = True
        return [Chunk(index, finish_reason="length") for index in range(self._num_choices)]

    async def aresult(self) -> Completion:
        """Return choices without text."""
        choices = [Choice(finish_reason="length") for _ in range(self._num_choices)]
        return Completion(choices, self.usage, self.timings)

    def abort(self) -> None:
        """Do nothing, since the answer has ended."""


class _Prompts:
    """Requests for the texts of one body: their echoes, their scores and their answers."""

    def __init__(
        self,
        exchange: Exchange,
        body: CompletionRequest,
        runner: Runner,
        params: SamplingParams,
    ) -> None:
        self._exchange = exchange
        self._body = body
        self._runner = runner
        self._params = params
        settings = exchange.service.settings
        self._clamps = settings.clamps_max_tokens
        texts = completion_texts(body, params, runner.facts, settings.max_text_chars)
        self._form = requested_form(body)
        self._named = list(zip(plain_names(texts, "prompt"), texts, strict=True))

    async def submit(self) -> list[AnswerStream]:
        """Submit a request for each text; abort the others if one is refused."""
        streams: list[AnswerStream] = []
        try:
            for name, text in self._named:
                with self._naming_field(name):
                    request = self._request(
                        params=self._params,
                        clamp_max_tokens=self._clamps,
                        fields=self._exchange.plugin_fields,
                        constraint=self._constraint,
                        **self._prompt_fields(text),
                    )
                    streams.append(await self._runner.asubmit(request))
        except BaseException:
            for stream in streams:
                stream.abort()
            raise
        return streams

    async def echoes(self) -> list[Echo]:
        """Return the echo of each prompt; as many are read at once as the engine has slots."""
        num_top = self._body.logprobs
        scorer = None if num_top is None else PromptScorer(self._runner, num_top, "logprobs")

        async def echo(named: tuple[str, Plain]) -> Echo:
            samples = await self._samples(named, scorer)
            ids = tuple(sample.token_id for sample in samples)
            text = named[1]
            if not isinstance(text, str):
                text = await adetokenize(self._runner, ids)
            return Echo(text, ids, tuple(samples))

        return await in_order(echo, self._named, self._runner.facts.limits.max_sequences)

    async def scores(self) -> list[list[Sample]]:
        """Return the scored tokens of each prompt, if ``prompt_logprobs`` is requested."""
        if (num_top := self._body.prompt_logprobs) is None:
            return []
        scorer = PromptScorer(self._runner, num_top, "prompt_logprobs")
        max_at_once = self._runner.facts.limits.max_sequences
        return await in_order(lambda named: self._samples(named, scorer), self._named, max_at_once)

    async def rendered(self) -> list[Rendered]:
        """Return each prompt without its text, a few at a time."""

        async def render(named: tuple[str, Plain]) -> Rendered:
            name, text = named
            request = self._request(
                params=self._params,
                constraint=self._constraint,
                id=self._exchange.head("cmpl", self._runner).id,
                **self._prompt_fields(text),
            )
            with self._naming_field(name):
                tokens = await self._runner.atokenize(request)
            return Rendered.of(
                self._exchange.model,
                request,
                tokens,
                self._runner.facts,
                self._body.prompt_logprobs,
                stream=bool(self._body.stream),
                stream_options=self._body.stream_options,
            )

        return await in_order(render, self._named, self._runner.facts.bounds.num_workers)

    @property
    def _constraint(self) -> Constraint | None:
        return self._form.constraint if self._form else None

    async def _samples(self, named: tuple[str, Plain], scorer: PromptScorer | None) -> list[Sample]:
        """Return the tokens of a prompt, with log-probabilities if there is a scorer."""
        name, text = named
        request = self._request(**self._prompt_fields(text))
        with self._naming_field(name):
            if scorer is not None:
                return await scorer.score(request)
            prompt = await self._runner.atokenize(request)
        return [Sample(token_id) for token_id in prompt.token_ids]

    @contextmanager
    def _naming_field(self, name: str) -> Iterator[None]:
        """Set ``param`` of errors of the runner to the field of the body."""
        try:
            yield
        except RequestError as error:
            rename_param(error, name)
            if error.param == "constraint" and self._form is not None:
                error.param = self._form.field
            raise

    def _prompt_fields(self, text: Plain) -> dict[str, Any]:
        return plain_fields(text) | {"adds_special": self._body.add_special_tokens is not False}

    def _request(self, **fields: Any) -> RunnerRequest:
        body, caller = self._body, self._exchange.caller
        return RunnerRequest(
            tenant=caller.tenant,
            account=caller.account,
            trace=caller.trace,
            cache_salt=body.cache_salt or "",
            priority=(body.priority or 0) + caller.priority,
            **fields,
        )


def completion_texts(
    body: CompletionRequest, params: SamplingParams, facts: RunnerFacts, max_chars: int
) -> list[Plain]:
    """Return the prompts of a body.

    All answers are generated at once, so their number is limited.

    Raises:
        RequestError: there are too many prompts, or they are too long together.
    """
    texts = plain_texts(body.prompt, "prompt")
    if len(texts) * params.n > MAX_CHOICES:
        raise RequestError(
            f"prompt and n ask for over {MAX_CHOICES} answers together", param="prompt"
        )
    try:
        check_plain_size(texts, max_chars, facts)
    except RequestError as error:
        rename_param(error, "prompt")
        raise
    return texts


def completion_params(body: CompletionRequest, facts: RunnerFacts) -> SamplingParams:
    """Return the sampling parameters of a body; the model's defaults fill the gaps."""
    values = {"max_tokens": DEFAULT_MAX_TOKENS} | sampling_values(body)
    values.pop("thinking_token_budget", None)  # plain texts have no separate reasoning
    if body.logprobs is not None:
        values |= {"logprobs": True, "top_logprobs": body.logprobs}
    if body.echo and body.max_tokens == 0:
        values["max_tokens"] = 1  # no token is generated
    params = facts.defaults.replaced(values)
    if body.best_of not in (None, params.n):
        raise RequestError(
            "best_of is not supported with this value by this server",
            param="best_of",
            code="unsupported_parameter",
        )
    return params


def _end_token_ids(params: SamplingParams, facts: RunnerFacts) -> frozenset[int]:
    """Return the tokens that end an answer and are not part of it."""
    return facts.eos_ids.union(() if params.include_stop_str_in_output else params.stop_token_ids)


def _encode_all(prompts: Seq[Rendered], runner: Runner) -> Iterator[bytes]:
    """Encode prompts, in pieces."""
    for number, each in enumerate(prompts):
        yield b"," if number else b"["
        yield from rendered_pieces(each, runner)
    yield b"]"
