"""What a reader has of an answer, and what another worker's stream of the same answer adds to it.

Both workers choose the same tokens, but put them into other chunks: drafts and held-back text
depend on the steps of a worker. Compares; does not make the other worker answer.
"""

from collections import defaultdict
from collections.abc import Iterator

from msgspec import structs

from vlmkit.errors import EngineError
from vlmkit.types.completion import Chunk
from vlmkit.types.delta import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from vlmkit.types.sample import Sample

_CALL_FIELDS = ("name", "arguments")
_Kind = tuple[str, int]
"""A kind of text of a choice, which the reader joins: ``text``, or a field of a numbered call."""


class OtherAnswerError(EngineError):
    """The other worker's answer is not the one that the reader has the beginning of.

    Args:
        what: what differs.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"a worker was lost, and another one gives another answer: {what}",
            hint="run the same version on equal processors, or ask again",
        )


class ReadAnswer:
    """What the reader has of all choices of a request."""

    def __init__(self) -> None:
        self._choices: defaultdict[int, _ReadChoice] = defaultdict(_ReadChoice)

    def begin_again(self) -> None:
        """Note that the following chunks are those of another worker, from the beginning."""
        for choice in self._choices.values():
            choice.begin_again()

    def new(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return what chunks add to what the reader has, which then has it, too.

        Raises:
            OtherAnswerError: a token or a text is another one.
        """
        return [new for each in chunks if (new := self._choices[each.index].new(each)) is not None]


class _ReadChoice:
    """What the reader has of one choice; after a new beginning, how much of it came again."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._texts: defaultdict[_Kind, list[str]] = defaultdict(list)
        self._calls: set[int] = set()  # whose ids the reader has; another worker makes others
        self._is_finished = False
        self._num_tokens_again: int | None = None  # None if all came again
        self._chars_again: dict[_Kind, int] = {}

    def begin_again(self) -> None:
        self._num_tokens_again = 0
        self._texts = defaultdict(list, {k: ["".join(v)] for k, v in self._texts.items() if v})
        self._chars_again = dict.fromkeys(self._texts, 0)

    def new(self, chunk: Chunk) -> Chunk | None:
        if self._num_tokens_again is not None:
            if self._is_finished:
                return None
            samples = self._new_samples(chunk.samples, self._num_tokens_again)
            deltas = tuple(self._new_deltas(chunk.deltas))
            if self._has_all(self._num_tokens_again):
                self._num_tokens_again = None
            if not (samples or deltas or chunk.finish_reason):
                return None
            chunk = structs.replace(chunk, samples=samples, deltas=deltas)
        self._note(chunk)
        return chunk

    def _note(self, chunk: Chunk) -> None:
        self._token_ids += [sample.token_id for sample in chunk.samples]
        for delta in chunk.deltas:
            for kind, text in _texts_of(delta):
                self._texts[kind].append(text)
            if isinstance(delta, ToolCallDelta):
                self._calls.add(delta.index)
        self._is_finished = chunk.finish_reason is not None

    def _has_all(self, num_tokens: int) -> bool:
        return num_tokens >= len(self._token_ids) and all(
            num_chars == len(self._texts[kind][0]) for kind, num_chars in self._chars_again.items()
        )

    def _new_samples(self, samples: tuple[Sample, ...], start: int) -> tuple[Sample, ...]:
        known = self._token_ids[start : start + len(samples)]
        if [sample.token_id for sample in samples[: len(known)]] != known:
            raise OtherAnswerError("a token differs")
        self._num_tokens_again = start + len(samples)
        return samples[len(known) :]

    def _new_deltas(self, deltas: tuple[Delta, ...]) -> Iterator[Delta]:
        for delta in deltas:
            new = {kind: self._new_text(kind, text) for kind, text in _texts_of(delta)}
            if not isinstance(delta, ToolCallDelta):
                text = next(iter(new.values()))
                if text:
                    yield structs.replace(delta, text=text)
            elif delta.index not in self._calls:
                yield delta
            elif any(new.values()):
                fields = {name: new.get((name, delta.index), "") for name in _CALL_FIELDS}
                yield ToolCallDelta(delta.index, **fields)

    def _new_text(self, kind: _Kind, text: str) -> str:
        """Return what follows the text that the reader has."""
        start = self._chars_again.get(kind)
        if start is None:
            return text
        known = self._texts[kind][0][start : start + len(text)]
        if not text.startswith(known):
            raise OtherAnswerError("the text differs")
        self._chars_again[kind] = start + len(known)
        return text[len(known) :]


def _texts_of(delta: Delta) -> Iterator[tuple[_Kind, str]]:
    """Yield the texts of a delta by their kind."""
    match delta:
        case TextDelta(text):
            yield ("text", 0), text
        case ReasoningDelta(text):
            yield ("reasoning", 0), text
        case ToolCallDelta():
            for name in _CALL_FIELDS:
                if text := getattr(delta, name):
                    yield (name, delta.index), text
