"""The state of one answer: its prompt, its tokens so far, and the progress of the cache.

A sequence has no behaviour of its own. The scheduler decides when it runs, the engine computes it,
the sampler chooses its tokens, and the loop ends it.
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
"""The purpose of a sequence: an answer, an embedding, or log-probabilities of given tokens.

``embed`` and ``score`` end as soon as the rows that they request are computed.
"""


@dataclass(slots=True, eq=False)
class Sequence:
    """The changing state of one answer; compared and hashed by identity.

    Attributes:
        id: unique in its pipeline.
        prompt: the prompt.
        params: the sampling parameters.
        seed: the resolved seed; with the position it determines every random draw.
        max_tokens: maximum number of tokens to generate; always fits the context. 0 for a sequence
            that generates none.
        eos_ids: tokens that end it.
        banned_ids: tokens that must never be chosen, such as image placeholders.
        dry_breakers: the token sequences that break runs of tokens. Maps the first token of each
            to the tokens that follow it; an empty tuple for a sequence of one token. See
            ``dry_sequence_breakers`` of the parameters.
        scope: separates caches, mainly those of tenants; part of every cache key.
        priority: smaller runs first.
        plan: the engine's analysis of the prompt; no chunk may cut its spans.
        task: the purpose of the sequence.
        wanted: positions whose rows are requested and not delivered yet; None requests the row of
            the newest token at every step.
        given: the tokens that follow the requested positions, if they are to be scored; all but the
            last are in ``output_ids``.
        output_ids: the tokens chosen so far.
        drafts: proposed next tokens, to be computed with the newest one; the scheduler may take
            fewer.
        num_computed_tokens: number of its tokens that the engine's cache holds.
        num_cached_tokens: number of tokens that were in the cache when it was first admitted.
        features: encoder outputs by slot index, while the engine needs them.
        encoding: indices of slots that are being encoded; items that touch them wait.
        encoded: the encoding stage of each slot that was not cached when it was first requested, by
            slot index; zeros until it is encoded.
        is_held: whether it is paused because its reader is too slow. It does not run, and its room
            may be preempted first.
        fields: the values of plugins' request fields, by name; see
            :class:`vlmkit.interfaces.request_field.RequestField`.
        field_identities: the identities of those values whose fields have one, by name.
        kept: state of components between steps, each under its own key; see
            :class:`vlmkit.kit.per_sequence.PerSequence`.
        guide: the grammar state that constrains the answer, for the executor; None if the answer is
            unconstrained.
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
    field_identities: Mapping[str, bytes] = field(default_factory=dict)
    kept: dict[object, Any] = field(default_factory=dict, init=False)
    guide: Any = None

    def __len__(self) -> int:
        """Return the number of tokens of prompt and answer together."""
        return len(self.prompt.token_ids) + len(self.output_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return len(self.prompt.token_ids)

    @property
    def rows(self) -> Span:
        """The positions whose output rows are requested next."""
        return self.wanted or Span(len(self) - 1, len(self))

    @property
    def first_row(self) -> int:
        """The first requested position; only tokens before it may come from a cache."""
        return self.rows.start

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens other than the newest one are still to be computed."""
        num_output = len(self.output_ids)  # inlined: called for each answer at each step
        num_tokens = len(self.prompt.token_ids) + num_output
        return not num_output or num_tokens - self.num_computed_tokens > 1

    def tokens(self, start: int, stop: int) -> Seq[int]:
        """Return the token ids of positions ``[start, stop)``."""
        num_prompt = len(self.prompt.token_ids)
        if start >= num_prompt:
            return self.output_ids[start - num_prompt : stop - num_prompt]
        head = self.prompt.token_ids[start:stop]
        return head if stop <= num_prompt else (*head, *self.output_ids[: stop - num_prompt])
