"""Each kind of call that concerns one sequence, as a loop makes them. No tests."""

from collections.abc import Generator, Iterator
from contextlib import suppress

from msgspec import structs

from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_testing.contracts.engine_overlap_contract import (
    on_device,
    overlapping,
    started_items,
)
from vlmkit_testing.contracts.engine_sequence import EngineSequence


def calls_of(
    host: EngineHost, sequence: EngineSequence, token_id: int
) -> Generator[str, None, None]:
    """Make every kind of call for a sequence, each at least once; yield each call's name.

    The caller may release the sequence after any of them.

    Args:
        host: the engine under test.
        sequence: a sequence that is not admitted.
        token_id: the token that its answer consists of.
    """
    assert host.admit(sequence) is not None, "there is no room"
    yield "admit()"
    assert not host.engine.reserve(sequence, host.engine.limits.capacity_tokens + 1)
    yield "a refused reserve()"
    yield from _prompt_calls(host, sequence)
    yield from _answer_calls(host, sequence, token_id)
    if host.engine.limits.overlaps_steps:
        yield from _overlapping_calls(host, sequence, token_id)


def _prompt_calls(host: EngineHost, sequence: EngineSequence) -> Iterator[str]:
    """Compute the prompt: a step that fails, a chunk, and the rest."""
    first = host.chunk(sequence)
    if sequence.touched(first.start, first.stop):
        features, sequence.features = sequence.features, {}
        with suppress(Exception):
            host.forward([first])
        sequence.features = features
        yield "a forward() that fails"
    start = sequence.num_done
    host.step([host.chunk(sequence, max(1, len(sequence) // 2))], commits=False)
    yield "forward() of a chunk"
    host.commit(sequence, start)
    yield "commit()"
    if sequence.num_done < len(sequence):
        host.prefill(sequence)
        yield "forward() of the last chunk"


def _answer_calls(host: EngineHost, sequence: EngineSequence, token_id: int) -> Iterator[str]:
    """Compute tokens of an answer: one twice, one with drafts, and one for its hidden state."""
    limits = host.engine.limits
    item = host.next_item(sequence, token_id)
    yield "reserve()"
    host.step([item], commits=False)
    yield "forward() of a token"
    host.step([item])
    yield "a repeated forward()"
    if limits.max_draft_tokens:
        item = host.next_item(sequence, token_id, (token_id,))
        host.step([item])
        yield "forward() with a draft"
        host.accept(item, 0)
        yield "truncate()"
    if limits.hidden_size:
        host.hidden([structs.replace(host.next_item(sequence, token_id), output="hidden")])
        sequence.num_done = len(sequence)
        yield "forward() of a hidden state"


def _overlapping_calls(host: EngineHost, sequence: EngineSequence, token_id: int) -> Iterator[str]:
    """Start a step ahead, read its rows, and discard it."""
    engine = overlapping(host.engine)
    tokens = on_device(host, [sequence], [token_id])
    started = started_items(host, [sequence])
    output = engine.forward_next(started, tokens)
    yield "forward_next()"
    assert output.logits is not None
    wait = engine.start_read(output.logits)
    yield "start_read()"
    wait()
    yield "a read of the rows of a step ahead"
    host.engine.truncate(sequence, started[0].start)
    yield "truncate() of a step ahead"
