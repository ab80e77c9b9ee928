"""One answer in the making: its prompt, its tokens so far, and how far the cache has come.

A sequence is state without behaviour of its own: the scheduler decides when it runs, the engine
computes it, the sampler picks its tokens, the loop ends it.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlmkit.prompt import Prompt, Span
from vlmkit.sampling import SamplingParams

if TYPE_CHECKING:
    from vlmkit.protocols import ImageFeatures


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's growing state; compared and hashed by identity.

    Attributes:
        id: unique in its pipeline.
        prompt: what it starts from.
        params: how its tokens are chosen.
        seed: the resolved seed: with the position it determines every random draw.
        max_tokens: most tokens it may generate; always fits the context.
        eos_ids: tokens that end it.
        banned_ids: tokens that must never be chosen, such as image placeholders.
        tenant: keeps caches of different clients apart; part of every cache key.
        priority: smaller runs first.
        atomic_spans: token ranges that no prefill chunk may cut.
        leader: a sequence with the same prompt whose prefill this one waits for and then shares.
        output_ids: the tokens chosen so far.
        num_computed_tokens: how many of its tokens the engine's cache holds.
        num_cached_tokens: how many of those were found in the cache when it was first admitted.
        features: encoder results by image, while the engine still needs them.
        encoding: images that are being encoded; what touches them waits for it.
        is_held: its reader is behind, so it does not run, and gives its place to whoever needs it.
        sampler_state: whatever the sampler keeps between its steps.
    """

    id: str
    prompt: Prompt
    params: SamplingParams
    seed: int
    max_tokens: int
    eos_ids: frozenset[int] = frozenset()
    banned_ids: tuple[int, ...] = ()
    tenant: str = ""
    priority: int = 0
    atomic_spans: tuple[Span, ...] = ()
    leader: "Sequence | None" = None
    output_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None
    features: "dict[int, ImageFeatures]" = field(default_factory=dict)
    encoding: set[int] = field(default_factory=set)
    is_held: bool = False
    sampler_state: Any = None

    def __len__(self) -> int:
        """Return the number of tokens, of prompt and answer together."""
        return len(self.prompt.token_ids) + len(self.output_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt.token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that the engine has yet to run before the next one can be chosen."""
        return len(self) - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the newest token is still to be computed."""
        return self.num_uncomputed_tokens > 1 or not self.output_ids

    def tokens(self, start: int, stop: int) -> Seq[int]:
        """Return the token ids of positions ``[start, stop)``."""
        num_prompt = len(self.prompt.token_ids)
        if start >= num_prompt:
            return self.output_ids[start - num_prompt : stop - num_prompt]
        head = self.prompt.token_ids[start:stop]
        return head if stop <= num_prompt else (*head, *self.output_ids[: stop - num_prompt])
