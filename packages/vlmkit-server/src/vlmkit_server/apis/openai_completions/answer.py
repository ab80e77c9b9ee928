"""Answers of the completions API: OpenAI's older objects, whole or as server-sent events."""

import codecs
from collections.abc import Iterable, Iterator, Sequence as Seq
from dataclasses import dataclass
from typing import Literal

import msgspec

from vlmkit.interfaces.runner import Runner
from vlmkit.types.completion import Chunk, Completion, Usage
from vlmkit.types.sample import Sample
from vlmkit_server.apis.openai_chat.answer import (
    LOGPROBS_PER_PIECE,
    PromptLogprobs,
    UsageBody,
    finite,
)
from vlmkit_server.apis.openai_chat.events import DONE, DataEvents, UsageEvents
from vlmkit_server.apis.openai_chat.prompt_logprobs import prompt_logprobs
from vlmkit_server.exchange.json_pieces import HOLE, MANY_EACH, drained, filled, listed
from vlmkit_server.interfaces.conversation import AnswerHead

_encode = msgspec.json.encode


class TextLogprobs(msgspec.Struct):
    """Log-probabilities of the tokens of one choice or chunk, one list per field.

    The first token of a prompt has none. ``text_offset`` is the number of characters before a
    token.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    """One of the answers, or its next piece; token ids only if they are requested."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: Seq[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class TextCompletion(msgspec.Struct):
    """The body of an answer that is not streamed."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: UsageBody
    object: Literal["text_completion"] = "text_completion"


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is repeated before its answers.

    Attributes:
        text: the text of the prompt.
        token_ids: its tokens.
        samples: its tokens with their log-probabilities, if these are requested.
    """

    text: str
    token_ids: tuple[int, ...]
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class TextAnswerOptions:
    """The parts of answers that a client requests.

    Attributes:
        end_token_ids: tokens that end an answer and are not part of it.
        echoes: the echo of each prompt; empty if none is requested.
        num_each: the number of answers to each prompt.
        prompts: the tokens of each prompt, if token ids are requested.
        num_top: the number of likeliest tokens per position; None for no log-probabilities.
        scores: the scored tokens of each prompt, if ``prompt_logprobs`` is requested.
    """

    end_token_ids: frozenset[int]
    echoes: Seq[Echo]
    num_each: int
    prompts: Seq[Seq[int]] | None
    num_top: int | None
    scores: Seq[Seq[Sample]] = ()


_NO_ECHO = Echo("", ())


class TextAnswers(DataEvents):
    """Encodes the answers to one body, whole or event by event.

    Args:
        head: the fields that every object repeats.
        runner: decodes token ids to bytes.
        num_choices: the number of answers.
        options: the parts of answers that the client requests.
        usage: encodes the usage of events.
    """

    def __init__(
        self,
        head: AnswerHead,
        runner: Runner,
        num_choices: int,
        options: TextAnswerOptions,
        *,
        usage: UsageEvents,
    ) -> None:
        self._head = head
        self._runner = runner
        self._options = options
        self._usage = usage
        self._opening = b""
        fields = msgspec.to_builtins(head) | {"object": "text_completion"}
        self._start = b"data: " + _encode(fields)[:-1]
        self._columns = [_Columns(runner, options) for _ in range(num_choices)]

    def encode_whole(self, completion: Completion) -> Iterator[bytes]:
        """Encode a whole answer in pieces; samples are removed from it as they are encoded."""
        choices = []
        fillings: list[Iterable[bytes]] = []
        for index, choice in enumerate(completion.choices):
            number = index // self._options.num_each
            echo = self._options.echoes[number] if self._options.echoes else _NO_ECHO
            text_choice = TextChoice(index, echo.text + choice.text, None, choice.finish_reason)
            if self._options.prompts is not None:
                text_choice.token_ids = choice.token_ids
                text_choice.prompt_token_ids = self._options.prompts[number]
            if self._has_logprobs:
                choice.samples[:] = [*echo.samples, *self._without_end_tokens(choice.samples)]
                text_choice.logprobs, columns = self._columns[index].holes(choice.samples)
                fillings += columns
            if self._options.scores:
                text_choice.prompt_logprobs = HOLE
                scores = prompt_logprobs(self._runner, self._options.scores[number])
                fillings.append(listed(scores, LOGPROBS_PER_PIECE))
            choices.append(text_choice)
        head, usage = self._head, UsageBody.of(completion.usage)
        body = TextCompletion(
            head.id, head.created, head.model, head.system_fingerprint, choices, usage
        )
        return filled(body, fillings)

    def opening(self) -> bytes:
        """Return the events of the prompts, which :meth:`encode_prompts` encoded."""
        return self._opening

    def encode_prompts(self) -> None:
        """Encode the prompts if their echo or token ids are requested; may take long."""
        events = []
        for index in range(len(self._columns)):
            content = self._echo(index)
            if self._options.prompts is not None:
                content = content or TextChoice(index, "", None, None)
                content.prompt_token_ids = self._options.prompts[index // self._options.num_each]
            if content is not None:
                events.append(self._event(content))
        self._opening = b"".join(events)

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the events of chunks; empty while their text is held back."""
        events = []
        for chunk in chunks:
            text_choice = self._choice(chunk.index, chunk.text, chunk.samples, chunk.finish_reason)
            has_logprobs = text_choice.logprobs is not None and text_choice.logprobs.tokens
            if (
                text_choice.text
                or has_logprobs
                or text_choice.finish_reason
                or text_choice.token_ids
            ):
                events.append(self._event(text_choice))
        return b"".join(events)

    def closing(self, usage: Usage) -> bytes:
        """Return the last events: usage, if requested, and the end marker."""
        content = self._usage.last(usage)
        return self._start + b',"choices":[]' + content + b"}\n\n" + DONE if content else DONE

    def _event(self, choice: TextChoice) -> bytes:
        content = _encode(choice) + b"]" + self._usage.field
        return self._start + b',"choices":[' + content + b"}\n\n"

    def _echo(self, index: int) -> TextChoice | None:
        if not self._options.echoes:
            return None
        echo = self._options.echoes[index // self._options.num_each]
        logprobs = self._columns[index].of(echo.samples) if self._has_logprobs else None
        return TextChoice(index, echo.text, logprobs, None)

    def _choice(
        self, index: int, text: str, samples: Seq[Sample], reason: str | None
    ) -> TextChoice:
        logprobs = (
            self._columns[index].of(self._without_end_tokens(samples))
            if self._has_logprobs
            else None
        )
        text_choice = TextChoice(index, text, logprobs, reason)
        if self._options.prompts is not None:
            text_choice.token_ids = [sample.token_id for sample in samples]
        return text_choice

    def _without_end_tokens(self, samples: Iterable[Sample]) -> list[Sample]:
        """Return samples without the tokens that end an answer."""
        return [sample for sample in samples if sample.token_id not in self._options.end_token_ids]

    @property
    def _has_logprobs(self) -> bool:
        return self._options.num_top is not None


class _Columns:
    """Encodes the samples of one choice as lists, and counts the characters so far."""

    def __init__(self, runner: Runner, options: TextAnswerOptions) -> None:
        self._runner = runner
        self._has_top = bool(options.num_top)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_chars = 0

    def of(self, samples: Seq[Sample]) -> TextLogprobs:
        """Return the lists for the next samples."""
        return TextLogprobs(
            list(self._tokens(samples)),
            list(map(_logprob, samples)),
            list(map(self._top, samples)) if self._has_top else None,
            list(self._offsets(samples)),
        )

    def holes(self, samples: list[Sample]) -> tuple[TextLogprobs, list[Iterable[bytes]]]:
        """Return lists with holes and their fillings; the last filling removes the samples."""
        columns = TextLogprobs(HOLE, HOLE, HOLE if self._has_top else None, HOLE)
        fillings: list[Iterable[bytes]] = [
            listed(self._tokens(samples), MANY_EACH),
            listed(map(_logprob, samples), MANY_EACH),
        ]
        if self._has_top:
            fillings.append(listed(map(self._top, samples), LOGPROBS_PER_PIECE))
        return columns, [*fillings, listed(self._offsets(drained(samples)), MANY_EACH)]

    def _tokens(self, samples: Iterable[Sample]) -> Iterator[str]:
        return (self._token(sample.token_id) for sample in samples)

    def _offsets(self, samples: Iterable[Sample]) -> Iterator[int]:
        """Yield the character offset of each sample's text."""
        for sample in samples:
            yield self._num_chars
            content = self._runner.token_bytes(sample.token_id)
            self._num_chars += len(self._decoder.decode(content))

    def _top(self, sample: Sample) -> dict[str, float] | None:
        if sample.logprob is None:
            return None
        top: dict[str, float] = {}
        for (
            entry
        ) in sample.top:  # the likeliest of several tokens with the same text, such as an empty one
            top.setdefault(self._token(entry.token_id), finite(entry.logprob))
        return top | {self._token(sample.token_id): finite(sample.logprob)}

    def _token(self, token_id: int) -> str:
        """Return the text of a token; the bytes of an incomplete character in OpenAI's notation."""
        content = self._runner.token_bytes(token_id)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def _logprob(sample: Sample) -> float | None:
    return None if sample.logprob is None else finite(sample.logprob)
