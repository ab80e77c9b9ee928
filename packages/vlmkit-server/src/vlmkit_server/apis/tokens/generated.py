"""What ``/inference/v1/generate`` answers: tokens, whole or as server-sent events."""

from collections.abc import Callable, Iterable, Iterator, Sequence as Seq

import msgspec

from vlmkit.types.completion import Chunk, Completion, Usage
from vlmkit.types.sample import Sample
from vlmkit_server.apis.openai_chat.answer import (
    LOGPROBS_PER_PIECE,
    Logprobs,
    PromptLogprobs,
    PromptLogprobsOfToken,
    TokenLogprob,
    TopLogprob,
    UsageBody,
    finite,
)
from vlmkit_server.apis.openai_chat.events import DONE, DataEvents, UsageEvents
from vlmkit_server.exchange.json_pieces import HOLE, drained, filled, listed
from vlmkit_server.interfaces.conversation import AnswerHead

_encode = msgspec.json.encode

TokenBytes = Callable[[int], bytes]


class GeneratedChoice(msgspec.Struct):
    """One of the answers, or what is new of it."""

    index: int
    token_ids: list[int]
    logprobs: Logprobs | None
    finish_reason: str | None


class Generated(msgspec.Struct):
    """The body of an answer that is not streamed."""

    request_id: str
    model: str
    created: int
    choices: list[GeneratedChoice]
    usage: UsageBody
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class GeneratedEvents(DataEvents):
    """Encodes one answer, whole or event by event.

    Args:
        head: whose answer it is.
        token_bytes: spells tokens of log-probabilities; None where none are told.
        prompt_logprobs: what a whole answer tells of its prompt.
        usage: which events have usage.
    """

    def __init__(
        self,
        head: AnswerHead,
        token_bytes: TokenBytes | None,
        prompt_logprobs: Iterable[PromptLogprobsOfToken] | None = None,
        *,
        usage: UsageEvents,
    ) -> None:
        self._head = head
        self._token_bytes = token_bytes
        self._prompt_logprobs = prompt_logprobs
        self._usage = usage
        self._start = b'data: {"request_id":%b,"choices":[' % _encode(head.id)

    def encode_whole(self, completion: Completion) -> Iterator[bytes]:
        """Encode a whole answer, in pieces; of its tokens, what was told is let go."""
        choices, fillings = [], []
        for index, choice in enumerate(completion.choices):
            generated = GeneratedChoice(index, choice.token_ids, None, choice.finish_reason)
            if self._token_bytes is not None:
                generated.logprobs = Logprobs(HOLE)
                fillings.append(
                    listed(map(self._logprob, drained(choice.samples)), LOGPROBS_PER_PIECE)
                )
            choices.append(generated)
        head, usage = self._head, UsageBody.of(completion.usage)
        body = Generated(head.id, head.model, head.created, choices, usage)
        if self._prompt_logprobs is not None:
            body.prompt_logprobs = HOLE
            fillings.append(listed(self._prompt_logprobs, LOGPROBS_PER_PIECE))
        return filled(body, fillings)

    def opening(self) -> bytes:
        """Return nothing: who speaks is no token."""
        return b""

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the events of some chunks, an event for each."""
        tail = b"]" + self._usage.field + b"}\n\n"
        return b"".join(
            self._start
            + _encode(self._choice(chunk.index, chunk.samples, chunk.finish_reason))
            + tail
            for chunk in chunks
            if chunk.samples or chunk.finish_reason
        )

    def closing(self, usage: Usage) -> bytes:
        """Return the last events: usage, if it was asked for, and the mark of a whole answer."""
        fields = self._usage.last(usage)
        return self._start + b"]" + fields + b"}\n\n" + DONE if fields else DONE

    def _choice(self, index: int, samples: Seq[Sample], reason: str | None) -> GeneratedChoice:
        ids = [sample.token_id for sample in samples]
        return GeneratedChoice(index, ids, self._logprobs(samples), reason)

    def _logprobs(self, samples: Seq[Sample]) -> Logprobs | None:
        """Return an entry for each token, the ending one included."""
        if self._token_bytes is None:
            return None
        return Logprobs(list(map(self._logprob, samples)))

    def _logprob(self, sample: Sample) -> TokenLogprob:
        likeliest = [
            TopLogprob(token_name(each.token_id), finite(each.logprob), self._bytes(each.token_id))
            for each in sample.top
        ]
        logprob = finite(sample.logprob if sample.logprob is not None else 0.0)
        name = token_name(sample.token_id)
        return TokenLogprob(name, logprob, self._bytes(sample.token_id), likeliest)

    def _bytes(self, token_id: int) -> list[int]:
        return list(self._token_bytes(token_id)) if self._token_bytes else []


def token_name(token_id: int) -> str:
    """Return a token's name, by which vLLM's clients know it."""
    return f"token_id:{token_id}"
