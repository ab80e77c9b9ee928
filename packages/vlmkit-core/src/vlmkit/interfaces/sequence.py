"""One answer in the making: its prompt, its tokens so far, and how far the cache has come.

A sequence is state without behaviour of its own: the scheduler decides when it runs, the engine
computes it, the sampler picks its tokens, the loop ends it.
"""

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vlmkit.interfaces.prompt import Prompt, PromptPlan, Span
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.stage import Stage

if TYPE_CHECKING:
    from vlmkit.interfaces.features import MediaFeatures

Task = Literal["generate", "embed", "score"]
"""What a sequence is for: an answer, a vector, or the log-probabilities of an answer that is given.

The last two end as soon as the rows that they want are computed.
"""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's growing state; compared and hashed by identity.

    Attributes:
        id: unique in its pipeline.
        prompt: what it starts from.
        params: how its tokens are chosen.
        seed: the resolved seed: with the position it determines every random draw.
        max_tokens: most tokens it may generate; always fits the context. Zero where it only reads.
        eos_ids: tokens that end it.
        banned_ids: tokens that must never be chosen, such as image placeholders.
        dry_breakers: by tokens that begin what breaks runs of tokens the tokens that follow them in
            it: an empty tuple where one breaks alone; see ``dry_sequence_breakers`` of the
            parameters.
        scope: keeps caches apart, of clients above all; part of every cache key.
        priority: smaller runs first.
        plan: what the engine made of the prompt; no chunk may cut its spans.
        task: what it is for.
        wanted: positions whose rows are wanted and were not taken yet; None wants the newest
            token's, again and again.
        given: the tokens that follow the wanted positions, if they are to be scored; all but the
            last stand in ``output_ids``.
        output_ids: the tokens chosen so far.
        drafts: guesses of the tokens that follow them, to be computed with the newest one; the
            scheduler may take fewer.
        num_computed_tokens: how many of its tokens the engine's cache holds.
        num_cached_tokens: how many of those were found in the cache when it was first admitted.
        features: encoder results by index of their slot, while the engine still needs them.
        encoding: indices of the slots that are being encoded; what touches them waits for it.
        encoded: by indices of the slots whose features were not there when it first asked for them:
            when they were encoded; zeros before.
        is_held: its reader is behind, so it does not run, and gives its place to whoever needs it.
        fields: what the request says by fields that plugins added, by their names; see
            :class:`vlmkit.interfaces.request_field.RequestField`.
        kept: what components keep for it between its steps, each under a key of its own: see
            :class:`vlmkit.kit.per_sequence.PerSequence`.
        guide: what keeps the answer within a constraint, for the executor; None leaves it free.
    """

    id: str
    prompt: Prompt
    params: SamplingParams
    seed: int = 0
    max_tokens: int = 0
    eos_ids: frozenset[int] = frozenset()
    banned_ids: tuple[int, ...] = ()
    dry_breakers: Mapping[int, Seq[tuple[int, ...]]] = field(default_factory=dict)
    scope: bytes = b""
    priority: int = 0
    plan: PromptPlan = field(default_factory=PromptPlan)
    task: Task = "generate"
    wanted: Span | None = None
    given: tuple[int, ...] = ()
    output_ids: list[int] = field(default_factory=list)
    drafts: tuple[int, ...] = ()
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None
    features: "dict[int, MediaFeatures]" = field(default_factory=dict)
    encoding: set[int] = field(default_factory=set)
    encoded: dict[int, Stage] = field(default_factory=dict)
    is_held: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    kept: dict[object, Any] = field(default_factory=dict, init=False)
    guide: Any = None

    def __len__(self) -> int:
        """Return the number of tokens, of prompt and answer together."""
        return len(self.prompt.token_ids) + len(self.output_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt.token_ids)

    @property
    def rows(self) -> Span:
        """Positions whose rows of the output are wanted next."""
        return self.wanted or Span(len(self) - 1, len(self))

    @property
    def first_row(self) -> int:
        """The first position whose row is wanted; a cache may stand for those before it only."""
        return self.rows.start

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the newest token is still to be computed."""
        num_output = len(self.output_ids)  # spelled out: asked for each answer at each step
        num_tokens = len(self.prompt.token_ids) + num_output
        return not num_output or num_tokens - self.num_computed_tokens > 1

    def tokens(self, start: int, stop: int) -> Seq[int]:
        """Return the token ids of positions ``[start, stop)``."""
        num_prompt = len(self.prompt.token_ids)
        if start >= num_prompt:
            return self.output_ids[start - num_prompt : stop - num_prompt]
        head = self.prompt.token_ids[start:stop]
        return head if stop <= num_prompt else (*head, *self.output_ids[: stop - num_prompt])
