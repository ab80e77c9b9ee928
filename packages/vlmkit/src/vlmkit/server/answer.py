"""What the chat API answers: OpenAI's objects, and how a completion becomes one."""

from collections.abc import Callable, Iterable, Sequence as Seq
from typing import Literal

import msgspec

from vlmkit.completion import Choice, Completion, Usage
from vlmkit.protocols import Logprob, Sample, Tokenizer


class TopLogprob(msgspec.Struct):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """One chosen token and what else was likely."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct):
    """Log-probabilities of the tokens of one choice or chunk."""

    content: list[TokenLogprob]
    refusal: None = None


class PromptTokensDetails(msgspec.Struct):
    """Where prompt tokens come from; ``image_tokens_each`` is ours, one number for each image."""

    cached_tokens: int
    image_tokens: int
    image_tokens_each: tuple[int, ...]


class UsageBody(msgspec.Struct):
    """What a request took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, usage: Usage) -> "UsageBody":
        """Put a stream's usage into OpenAI's shape."""
        return cls(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            PromptTokensDetails(usage.cached_tokens, sum(usage.image_tokens), usage.image_tokens),
        )


class AnswerMessage(msgspec.Struct):
    """What the model says."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class AnswerChoice(msgspec.Struct):
    """One of the ``n`` answers."""

    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: str | None


class ChatCompletion(msgspec.Struct):
    """The body of an answer that is not streamed."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[AnswerChoice]
    usage: UsageBody
    object: Literal["chat.completion"] = "chat.completion"


class AnswerHead(msgspec.Struct, frozen=True):
    """What every object of one answer says about it."""

    id: str
    created: int
    model: str
    system_fingerprint: str


LogprobsOf = Callable[[Iterable[Sample]], Logprobs]


def logprobs_of(tokenizer: Tokenizer) -> LogprobsOf:
    """Return a function that puts samples into OpenAI's shape, but for those that end an answer."""
    ends = tokenizer.eos_ids

    def token(token_id: int) -> tuple[str, list[int]]:
        content = tokenizer.token_bytes(token_id)
        return content.decode(errors="replace"), list(content)

    def top(entry: Logprob) -> TopLogprob:
        text, content = token(entry.token_id)
        return TopLogprob(text, _finite(entry.logprob), content)

    def logprobs(samples: Iterable[Sample]) -> Logprobs:
        content = []
        for sample in samples:
            if sample.token_id in ends or sample.logprob is None:
                continue
            text, token_bytes = token(sample.token_id)
            likeliest = [top(entry) for entry in sample.top]
            content.append(TokenLogprob(text, _finite(sample.logprob), token_bytes, likeliest))
        return Logprobs(content)

    return logprobs


def completion_body(head: AnswerHead, completion: Completion, logprobs: LogprobsOf | None) -> bytes:
    """Encode a whole answer."""
    choices = _choices(completion.choices, logprobs)
    usage = UsageBody.of(completion.usage)
    return msgspec.json.encode(
        ChatCompletion(head.id, head.created, head.model, head.system_fingerprint, choices, usage)
    )


def _choices(choices: Seq[Choice], logprobs: LogprobsOf | None) -> list[AnswerChoice]:
    return [
        AnswerChoice(
            index,
            AnswerMessage(choice.text),
            logprobs(choice.samples) if logprobs else None,
            choice.finish_reason,
        )
        for index, choice in enumerate(choices)
    ]


def _finite(logprob: float) -> float:
    """Return a number that JSON has; OpenAI's API says -9999.0 for what never happens."""
    return max(logprob, -9999.0)
