"""What a component may read of a sequence; the scheduler's and the loop's own state is not in it.

A log could replay it in another process: it is made of values.
"""

from collections.abc import Hashable, Mapping, Sequence as Seq
from typing import Any, Protocol

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt, PromptPlan


class SequenceView(Hashable, Protocol):
    """One answer in the making, as engines see it; compared and hashed by identity."""

    @property
    def id(self) -> str:
        """Unique in its pipeline."""
        ...

    @property
    def prompt(self) -> Prompt:
        """What it starts from."""
        ...

    @property
    def plan(self) -> PromptPlan:
        """What the engine made of the prompt when it read it."""
        ...

    @property
    def scope(self) -> bytes:
        """Part of every cache key: what differs in it shares nothing."""
        ...

    @property
    def features(self) -> Mapping[int, MediaFeatures]:
        """Encoder results by index of their slot, there while items touch that."""
        ...

    @property
    def fields(self) -> Mapping[str, Any]:
        """What the request says by fields that plugins added, by their names."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        ...

    @property
    def first_row(self) -> int:
        """The first position whose row is wanted; a cache may stand for those before it only."""
        ...

    def __len__(self) -> int:
        """Return the number of tokens, of prompt and answer together."""
        ...

    def tokens(self, start: int, stop: int) -> Seq[int]:
        """Return the token ids of positions ``[start, stop)``."""
        ...
