"""The rules of a step that :mod:`vlmkit.interfaces` states, each as a check of one plan."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence as Seq
from typing import Any

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import EncodeItem, Step, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit_testing.contracts.strict_cache import StrictCache

ITS_OWN = frozenset({"num_computed_tokens", "num_cached_tokens", "features", "kept"})
"""What a scheduler may change of a sequence; ``kept`` is for the state of any component."""

NOT_ITS_OWN = tuple(each.name for each in dataclasses.fields(Sequence) if each.name not in ITS_OWN)


def state_of(sequence: Sequence) -> dict[str, Any]:
    """Return what no scheduler changes of a sequence, as copies where it is mutable."""
    return {name: _copied(getattr(sequence, name)) for name in NOT_ITS_OWN}


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, list | set | dict) else value


def check_step(step: Step, cache: StrictCache) -> None:
    """Fail if the items of a step break a rule."""
    runs = [item.sequence for item in step.items]
    assert len(set(runs)) == len(runs), "a sequence has two items in one step"
    assert not set(runs) & set(step.preempted), "a preempted sequence runs"
    for item in step.items:
        check_item(item, cache)
    if not cache.limits.mixes_prefill_and_decode:
        kinds = [item.sequence.is_prefilling for item in step.items]
        assert len(set(kinds)) <= 1, "a step mixes"
        assert kinds.count(True) <= 1, "a step has two chunks on an engine that does not mix"


def check_preempted(step: Step, had_room: Iterable[SequenceView], cache: StrictCache) -> None:
    """Fail if a step does not name exactly the sequences that it preempted."""
    named = set(step.preempted)
    assert len(named) == len(step.preempted), "a sequence is preempted twice"
    assert named <= set(cache.released), "a preempted sequence keeps its room"
    hidden = set(cache.released).intersection(had_room) - named
    assert not hidden, "a sequence lost its room, and the step does not name it"
    for sequence in step.preempted:
        assert sequence not in cache.reserved, "a preempted sequence keeps its room"
        assert not sequence.features, "features of a preempted sequence are kept"


def check_encodes(encodes: Seq[EncodeItem], cache: StrictCache) -> None:
    """Fail if a step names a medium that is unknown, encoded, or being encoded."""
    assert len(set(encodes)) == len(encodes), "a step names a medium twice"
    for encode in encodes:
        sequence, index = encode.sequence, encode.index
        assert 0 <= index < len(sequence.prompt.media), "a medium is named that is not there"
        assert sequence in cache.reserved, "a medium of a sequence without room is named"
        is_computed = sequence.prompt.media[index].stop <= cache.computed[sequence]
        assert not is_computed, "a medium is named whose tokens are in the cache"
        assert index not in sequence.features, "a medium is named whose features are there"
        assert index not in sequence.encoding, "a medium is named that is being encoded"


def check_books(sequences: Iterable[Sequence], cache: StrictCache) -> None:
    """Fail if the state of the sequences disagrees with the cache."""
    for sequence in sequences:
        assert sequence.num_computed_tokens == cache.computed.get(sequence, 0), (
            "num_computed_tokens is not what the cache holds"
        )
        assert sequence.num_cached_tokens == cache.first_found.get(sequence), (
            "num_cached_tokens is not what the first admit() found"
        )


def check_item(item: WorkItem, cache: StrictCache) -> None:
    """Fail if a work item breaks a rule of ``interfaces.step`` or of :class:`EngineLimits`."""
    sequence = item.sequence
    assert sequence in cache.reserved, "a sequence runs without room"
    assert item.start == sequence.num_computed_tokens == cache.computed[sequence], (
        "an item starts elsewhere than after the tokens that are in the cache"
    )
    assert 1 <= item.num_tokens <= cache.limits.max_chunk_tokens, "a chunk is empty or too long"
    num_drafts, num_own = len(item.drafts), item.stop - len(item.drafts)
    assert num_own <= len(sequence) and item.stop <= cache.reserved[sequence], (
        "tokens without room: ask cache.reserve() before each step of an answer"
    )
    assert num_drafts <= cache.limits.max_draft_tokens, "more drafts than the engine takes"
    assert item.drafts == sequence.drafts[:num_drafts], "drafts are not the sequence's"
    assert not num_drafts or num_own == len(sequence), "drafts follow the newest token"
    assert item.start <= sequence.first_row, "a token whose row is wanted was passed over"
    num_rows = max(0, item.stop - max(item.start, sequence.first_row))
    assert item.num_rows == num_rows, "each wanted row has an item, and no other row is asked for"
    is_embed = sequence.task == "embed"
    assert is_embed or num_rows <= cache.limits.max_item_rows, "more rows than the engine gives"
    assert item.output == ("hidden" if is_embed else "logits"), "rows of the wrong kind"
    assert not sequence.is_held, "a held sequence runs"
    for index in sequence.encoding:
        slot = sequence.prompt.media[index]
        assert slot.stop <= item.start or slot.start >= item.stop, (
            "a medium is being encoded, and what touches it takes the room of others"
        )
    for span in sequence.plan.spans:
        assert not span.start < item.start < span.stop, "a chunk starts inside an atomic span"
        assert not span.start < item.stop < span.stop, "a chunk ends inside an atomic span"


def check_features(item: WorkItem) -> None:
    """Fail unless every medium that an item touches was encoded."""
    features: Mapping[int, MediaFeatures] = item.sequence.features
    for index, slot in enumerate(item.sequence.prompt.media):
        if slot.start < item.stop and slot.stop > item.start:
            assert index in features, "a medium is computed before it is encoded"
