"""A sequence as an engine may see it: the members of :class:`SequenceView` alone."""

from collections.abc import Iterable, Mapping, Sequence as Seq
from typing import Any

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt, PromptPlan


class EngineSequence:
    """The sequences of engine tests.

    An engine that reads anything else gets an AttributeError, as it would in another process.

    Args:
        id: unique in its engine.
        prompt: what it starts from.
        plan: what the engine made of that.
        scope: whose caches it shares.
        features: encoder results by medium; in a step the engine sees those that an item touches.
        answer: the tokens after the prompt, to which a test adds.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - as a sequence has it
        prompt: Prompt,
        plan: PromptPlan,
        scope: bytes,
        features: Mapping[int, MediaFeatures],
        answer: Iterable[int] = (),
    ) -> None:
        self.id, self.prompt, self.plan, self.scope = id, prompt, plan, scope
        self.features = features
        self.fields: Mapping[str, Any] = {}
        self.field_identities: Mapping[str, bytes] = {}
        self.answer = list(answer)
        self.num_done = 0  # tokens that the engine has computed
        self.wants_from: int | None = None  # the first row; None is the newest token's

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    @property
    def first_row(self) -> int:
        """The first position whose row is wanted; a cache may stand for those before it only."""
        return len(self) - 1 if self.wants_from is None else self.wants_from

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)

    def tokens(self, start: int, stop: int) -> Seq[int]:
        """Return the token ids of positions ``[start, stop)``; a list if all are of the answer."""
        if start >= len(self.prompt):
            return self.answer[start - len(self.prompt) : max(start, stop) - len(self.prompt)]
        return (*self.prompt.token_ids, *self.answer)[start:stop]

    def touched(self, start: int, stop: int) -> Mapping[int, MediaFeatures]:
        """Return the features of media that tokens ``[start, stop)`` touch."""
        touched = {
            index
            for index, slot in enumerate(self.prompt.media)
            if slot.start < stop and slot.stop > start
        }
        return {index: each for index, each in self.features.items() if index in touched}
