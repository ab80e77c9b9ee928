"""Answers of ``/api/chat`` and ``/api/generate``: one JSON object, or the lines of a stream."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit.types.completion import Timings, Usage
from vlmkit.types.sample import Sample
from vlmkit.types.tool_call import ToolCallPart

INVALID_INPUT_KEY = "INVALID_JSON"
"""The key of arguments that are no JSON object: clients expect an object, whatever a model says."""

_LOWEST = -9999.0  # JSON has no infinity


class LikelyToken(msgspec.Struct):
    """A likely token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(LikelyToken):
    """A token of the answer, and the likeliest tokens at its position."""

    top_logprobs: list[LikelyToken]


class AnswerFunction(msgspec.Struct):
    """The function of a call; its arguments are an object."""

    index: int
    name: str
    arguments: Raw


class AnswerCall(msgspec.Struct):
    """A tool call."""

    id: str
    function: AnswerFunction


class OllamaMessage(msgspec.Struct):
    """The message of an answer, or a piece of it."""

    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"


class AnswerLine(msgspec.Struct, kw_only=True):
    """What every line has; the fields after ``done`` are in the last one.

    Durations are in nanoseconds.
    """

    model: str
    created_at: datetime
    done: bool
    done_reason: str | UnsetType = UNSET
    logprobs: list[ChosenLogprob] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class ChatLine(AnswerLine, kw_only=True):
    """An answer of ``/api/chat``, or a piece of it."""

    message: OllamaMessage


class GenerateLine(AnswerLine, kw_only=True):
    """An answer of ``/api/generate``, or a piece of it."""

    response: str
    thinking: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of an answer, or the whole.

    Attributes:
        text: its text.
        reasoning: its reasoning.
        calls: its tool calls.
        samples: its tokens, if log-probabilities are reported.
    """

    text: str = ""
    reasoning: str = ""
    calls: Iterable[ToolCallPart] = ()
    samples: Iterable[Sample] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """When a request began, and how long it waited for its model, both in seconds.

    Attributes:
        began_s: the monotonic time at which its body was read.
        load_s: how long it waited until the model was loaded.
    """

    began_s: float
    load_s: float

    def counts(self, usage: Usage, timings: Timings, now_s: float) -> dict[str, int]:
        """Return the counts and durations of an answer that ends now."""
        return {
            "total_duration": nanoseconds(now_s - self.began_s),
            "load_duration": nanoseconds(self.load_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(timings.first_token_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(timings.decode_s),
        }


LogprobsOf = Callable[[Iterable[Sample]], list[ChosenLogprob]]
MakeLine = Callable[..., AnswerLine]


def logprobs_of(runner: Runner, end_token_ids: frozenset[int]) -> LogprobsOf:
    """Return a function that encodes samples, without the tokens that end an answer."""

    def token(token_id: int, logprob: float) -> tuple[str, float, list[int]]:
        content = runner.token_bytes(token_id)
        return content.decode(errors="replace"), max(logprob, _LOWEST), list(content)

    def logprobs(samples: Iterable[Sample]) -> list[ChosenLogprob]:
        return [
            ChosenLogprob(
                *token(sample.token_id, sample.logprob),
                [LikelyToken(*token(each.token_id, each.logprob)) for each in sample.top],
            )
            for sample in samples
            if sample.logprob is not None and sample.token_id not in end_token_ids
        ]

    return logprobs


def chat_line(content: Content, **fields: Any) -> ChatLine:
    """Return a line of ``/api/chat``."""
    calls = [_call(index, call) for index, call in enumerate(content.calls)]
    thinking = content.reasoning or UNSET
    message = OllamaMessage(content.text, thinking, calls or UNSET)
    return ChatLine(message=message, created_at=datetime.now(UTC), **fields)


def generate_line(content: Content, **fields: Any) -> GenerateLine:
    """Return a line of ``/api/generate``."""
    thinking = content.reasoning or UNSET
    return GenerateLine(
        response=content.text, thinking=thinking, created_at=datetime.now(UTC), **fields
    )


def _call(index: int, call: ToolCallPart) -> AnswerCall:
    """Return a call with its arguments as an object."""
    try:
        call.parsed()
    except RequestError:
        arguments = msgspec.json.encode({INVALID_INPUT_KEY: call.arguments})
    else:
        arguments = (call.arguments.strip() or "{}").encode()
    return AnswerCall(call.id, AnswerFunction(index, call.name, Raw(arguments)))


def nanoseconds(seconds: float) -> int:
    """Return a duration in nanoseconds, as Ollama reports it."""
    return max(0, round(seconds * 1e9))
