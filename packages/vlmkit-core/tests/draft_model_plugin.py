"""A plugin in a file: a proposer whose drafts are those of a small model.

The draft model is a second checkpoint, which the pipeline builds with any engine. Its prefix cache
is the state between steps: each step admits a sequence for every answer, finds the tokens of
earlier steps in the cache, decodes greedily and releases the sequence.
"""

import itertools
from collections.abc import Mapping, Sequence as Seq
from typing import Annotated, Any

import msgspec
import numpy as np

import vlmkit
from vlmkit.errors import PluginError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit.settings.paths import ModelReference
from vlmkit.types.sampling import SamplingParams

VLMKIT_API = (1, 0)


class DraftModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[proposer]`` beside ``use = "draft-model"``.

    Attributes:
        model: the draft model, whose vocabulary must be that of the model.
        engine: the settings of its engine; ``use`` names the provider.
        num_tokens: drafts of each answer in a step.
    """

    model: ModelReference = "mock"
    engine: dict[str, Any] = {}
    num_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4


class DraftModelProposer:
    """Drafts the likeliest tokens of a small model, for all answers of a step together.

    Args:
        engine: runs the draft model.
        num_tokens: drafts of each answer in a step.
    """

    def __init__(self, engine: Engine, num_tokens: int) -> None:
        self._engine = engine
        self._num_tokens = num_tokens
        self._numbers = itertools.count()

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        """Return the likeliest tokens after one answer."""
        return self.propose_all([sequence], [num_tokens])[0]

    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        """Return the likeliest tokens after each answer; none for one that has no room."""
        copies = [None if each.prompt.media else self._copy(each) for each in sequences]
        found: dict[Sequence, list[int]] = {}
        bounds: dict[Sequence, int] = {}
        try:
            for copy, bound in zip(copies, num_tokens, strict=True):
                if copy is not None and bound > 0 and self._admit(copy):
                    found[copy], bounds[copy] = [], min(bound, self._num_tokens)
            rows = {copy: self._prefill(copy) for copy in found}
            while rows:
                for copy, row in rows.items():
                    found[copy].append(int(row.argmax()))
                rows = self._decode({c: found[c][-1] for c in rows if len(found[c]) < bounds[c]})
        finally:
            for copy in found:
                self._engine.release(copy)
        return [() if copy is None else found.get(copy, ()) for copy in copies]

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Do nothing: the number of drafts is fixed."""

    def forget(self, sequence: Sequence) -> None:
        """Do nothing: no sequence is kept between steps."""

    def _copy(self, sequence: Sequence) -> Sequence:
        """Return a sequence of the draft model with the same tokens."""
        return Sequence(
            f"draft-{next(self._numbers)}",
            sequence.prompt,
            SamplingParams(),
            scope=sequence.scope,
            plan=self._engine.read(sequence.prompt),
            output_ids=list(sequence.output_ids),
        )

    def _admit(self, copy: Sequence) -> bool:
        if len(copy) + self._num_tokens > self._engine.limits.max_sequence_tokens:
            return False
        if (admission := self._engine.admit(copy)) is None:
            return False
        copy.num_computed_tokens = admission.num_cached
        return True

    def _prefill(self, copy: Sequence) -> Any:
        """Compute the tokens that are not cached; return the logits of the last one."""
        longest = self._engine.limits.max_chunk_tokens
        rows: Any = []
        while copy.num_computed_tokens < len(copy):
            start = copy.num_computed_tokens
            stop = min(len(copy), start + longest)
            rows = self._step([WorkItem(copy, start, stop - start, int(stop == len(copy)))])
        return rows[0]

    def _decode(self, newest: Mapping[Sequence, int]) -> dict[Sequence, Any]:
        """Append a token to each sequence that has room; return the logits of what follows."""
        items = []
        for copy, token_id in newest.items():
            if self._engine.reserve(copy, len(copy) + 1):
                copy.output_ids.append(token_id)
                items.append(WorkItem(copy, len(copy) - 1, 1, 1))
        rows = self._step(items)
        return {item.sequence: row for item, row in zip(items, rows, strict=True)}

    def _step(self, items: Seq[WorkItem]) -> Any:
        """Compute items and commit whole blocks; return the rows of logits."""
        if not items:
            return []
        logits = self._engine.forward(items).logits
        block_tokens = self._engine.limits.prefix_block_tokens
        for item in items:
            item.sequence.num_computed_tokens = item.stop
            if block_tokens and item.stop // block_tokens > item.start // block_tokens:
                self._engine.commit(item.sequence, item.stop)
        return [] if logits is None else np.array(np.from_dlpack(logits))


def _build(context: BuildContext) -> DraftModelProposer:
    settings: DraftModelSettings = context.settings
    engine_settings = dict(settings.engine)
    use = engine_settings.pop("use", "auto")
    other = context.build_other(settings.model, use=use, settings=engine_settings)
    if other.tokenizer.vocab_size != context.tokenizer.vocab_size:
        raise PluginError(f"draft model {settings.model!r} has another vocabulary")
    return DraftModelProposer(other.engine, settings.num_tokens)


@vlmkit.hookimpl
def vlmkit_register_proposers(registry: Registry[Any]) -> None:
    """Offer ``proposer.use = "draft-model"``."""
    registry.add("draft-model", _build, settings=DraftModelSettings)
