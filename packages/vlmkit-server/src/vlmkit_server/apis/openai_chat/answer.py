"""Answers of the chat API: OpenAI's objects, and their encoding as JSON.

Streamed answers are encoded in :mod:`vlmkit_server.apis.openai_chat.events`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence as Seq
from itertools import chain
from typing import Literal

import msgspec

from vlmkit.interfaces.runner import Runner
from vlmkit.types.completion import Choice, Completion, Usage
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.sample import Logprob, Sample
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.exchange.json_pieces import HOLE, drained, filled, listed
from vlmkit_server.interfaces.conversation import AnswerHead, Extras
from vlmkit_server.wire.image_transforms import ImageTransform, image_transforms

LOGPROBS_PER_PIECE = 16  # tokens whose log-probabilities are encoded at once


class TopLogprob(msgspec.Struct):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """One sampled token and the likeliest alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct):
    """Log-probabilities of the tokens of one choice or chunk."""

    content: list[TokenLogprob]
    refusal: None = None


class PromptTokensDetails(msgspec.Struct):
    """Kinds of prompt tokens; ``image_tokens_each`` is an extension with one number per image."""

    cached_tokens: int
    image_tokens: int
    image_tokens_each: tuple[int, ...]


class CompletionTokensDetails(msgspec.Struct):
    """Kinds of tokens in the answer."""

    reasoning_tokens: int


class UsageBody(msgspec.Struct):
    """The tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, usage: Usage) -> "UsageBody":
        """Return the usage of a stream in OpenAI's shape."""
        return cls(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            PromptTokensDetails(usage.cached_tokens, sum(usage.image_tokens), usage.image_tokens),
            CompletionTokensDetails(usage.reasoning_tokens),
        )


class CalledFunctionBody(msgspec.Struct):
    """A function and its arguments, which are JSON as the model wrote it."""

    name: str
    arguments: str


class ToolCallBody(msgspec.Struct):
    """A tool call."""

    id: str
    function: CalledFunctionBody
    type: Literal["function"] = "function"


class AnswerMessage(msgspec.Struct):
    """The text and tool calls of the model, and its reasoning if it has any."""

    content: str | None
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET  # an older name of ``reasoning``
    tool_calls: list[ToolCallBody] | msgspec.UnsetType = msgspec.UNSET
    places: tuple[GroundedRegion, ...] | msgspec.UnsetType = msgspec.UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class AnswerChoice(msgspec.Struct):
    """One of the ``n`` answers."""

    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class PromptLogprob(msgspec.Struct):
    """The log-probability, rank and text of one candidate for a prompt token, in vLLM's shape."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobsOfToken = dict[str, PromptLogprob] | None
"""The prompt token and the likeliest alternatives, by token id; None if it is not scored."""

PromptLogprobs = list[PromptLogprobsOfToken]
"""One entry for each token of a prompt."""


class ChatCompletion(msgspec.Struct):
    """The body of an answer that is not streamed."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[AnswerChoice]
    usage: UsageBody
    prompt_token_ids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    image_transforms: list[ImageTransform] | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion"] = "chat.completion"


LogprobsOf = Callable[[Iterable[Sample]], Logprobs]


def logprobs_of(runner: Runner, params: SamplingParams | None = None) -> LogprobsOf:
    """Return a function that encodes samples, without the tokens that end an answer.

    Args:
        runner: decodes token ids to bytes.
        params: the sampling parameters of the answer.
    """
    ends = runner.facts.eos_ids
    if params is not None and not params.include_stop_str_in_output:
        ends = ends.union(params.stop_token_ids)

    def token(token_id: int) -> tuple[str, list[int]]:
        content = runner.token_bytes(token_id)
        return content.decode(errors="replace"), list(content)

    def top(entry: Logprob) -> TopLogprob:
        text, content = token(entry.token_id)
        return TopLogprob(text, finite(entry.logprob), content)

    def logprobs(samples: Iterable[Sample]) -> Logprobs:
        content = []
        for sample in samples:
            if sample.token_id in ends or sample.logprob is None:
                continue
            text, token_bytes = token(sample.token_id)
            likeliest = [top(entry) for entry in sample.top]
            content.append(TokenLogprob(text, finite(sample.logprob), token_bytes, likeliest))
        return Logprobs(content)

    return logprobs


def completion_pieces(
    head: AnswerHead,
    logprobs: LogprobsOf | None,
    extras: Extras,
    prompt_logprobs: Iterable[PromptLogprobsOfToken] | None,
    completion: Completion,
) -> Iterator[bytes]:
    """Encode a whole answer in pieces; samples are removed from it as they are encoded."""
    choices = completion.choices
    body = ChatCompletion(
        head.id,
        head.created,
        head.model,
        head.system_fingerprint,
        _choices(choices, extras),
        UsageBody.of(completion.usage),
        completion.prompt_token_ids if extras.token_ids else msgspec.UNSET,
        msgspec.UNSET if prompt_logprobs is None else HOLE,
        image_transforms(completion.usage.images) if extras.image_transforms else msgspec.UNSET,
    )
    fillings = [logprob_pieces(logprobs, choice.samples) for choice in choices if logprobs]
    if prompt_logprobs is not None:
        fillings.append(listed(prompt_logprobs, LOGPROBS_PER_PIECE))
    return filled(body, fillings)


def logprob_pieces(logprobs: LogprobsOf, samples: list[Sample]) -> Iterator[bytes]:
    """Encode the log-probabilities of samples in pieces; removes the samples from the list."""
    contents = (logprobs((sample,)).content for sample in drained(samples))
    return listed(chain.from_iterable(contents), LOGPROBS_PER_PIECE)


def _choices(choices: Seq[Choice], extras: Extras) -> list[AnswerChoice]:
    return [
        AnswerChoice(
            index,
            _message(choice, has_places=extras.places),
            Logprobs(HOLE) if extras.logprobs else None,
            finish_reason(choice.finish_reason, calls=bool(choice.tool_calls)),
            choice.token_ids if extras.token_ids else msgspec.UNSET,
        )
        for index, choice in enumerate(choices)
    ]


def _message(choice: Choice, *, has_places: bool) -> AnswerMessage:
    calls = [
        ToolCallBody(call.id, CalledFunctionBody(call.name, call.arguments))
        for call in choice.tool_calls
    ]
    return AnswerMessage(
        choice.text or (None if calls else ""),
        choice.reasoning or msgspec.UNSET,
        choice.reasoning or msgspec.UNSET,
        calls or msgspec.UNSET,
        choice.places if has_places else msgspec.UNSET,
    )


def finish_reason(reason: str | None, *, calls: bool) -> str | None:
    """Return OpenAI's finish reason; an answer that stops with calls has ``tool_calls``."""
    return "tool_calls" if calls and reason == "stop" else reason


def finite(logprob: float) -> float:
    """Return a finite number for JSON; OpenAI's API uses -9999.0 for a probability of zero."""
    return max(logprob, -9999.0)
