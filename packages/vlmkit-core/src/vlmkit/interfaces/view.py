"""The attributes of a sequence that components may read; excludes state of scheduler and loop.

It consists of values, so another process can reconstruct it from a log.
"""

from collections.abc import Hashable, Mapping, Sequence as Seq
from typing import Any, Protocol

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt, PromptPlan


class SequenceView(Hashable, Protocol):
    """An engine's view of one sequence; compared and hashed by identity."""

    @property
    def id(self) -> str:
        """Unique in its pipeline."""
        ...

    @property
    def prompt(self) -> Prompt:
        """The prompt."""
        ...

    @property
    def plan(self) -> PromptPlan:
        """The engine's analysis of the prompt, from ``Engine.read``."""
        ...

    @property
    def scope(self) -> bytes:
        """Part of every cache key: sequences of different scopes share nothing."""
        ...

    @property
    def features(self) -> Mapping[int, MediaFeatures]:
        """Encoder outputs by slot index, present while work items touch the slot."""
        ...

    @property
    def fields(self) -> Mapping[str, Any]:
        """The values of plugins' request fields, by name."""
        ...

    @property
    def field_identities(self) -> Mapping[str, bytes]:
        """The identities of those values whose fields have one, by name."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        ...

    @property
    def first_row(self) -> int:
        """The first requested position; only tokens before it may come from a cache."""
        ...

    def __len__(self) -> int:
        """Return the number of tokens of prompt and answer together."""
        ...

    def tokens(self, start: int, stop: int) -> Seq[int]:
        """Return the token ids of positions ``[start, stop)``."""
        ...
