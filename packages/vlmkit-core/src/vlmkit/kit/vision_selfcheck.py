"""Answers one prompt with an engine and an encoder that nobody else uses yet.

For engines that are tried when their model is loaded. What the answer should be, the engine knows.
"""

from collections.abc import Iterator, Sequence as Seq

from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Array, Prompt, PromptPlan
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem
from vlmkit.types.sampling import SamplingParams

NUM_CHUNKS = 3  # of a prompt, where it may be cut


def answered(
    engine: Engine, encoder: MediaEncoder, prompt: Prompt, answer: Seq[int]
) -> list[Array] | None:
    """Compute a prompt in chunks, then an answer token by token; nothing is kept in the cache.

    Args:
        engine: computes nothing else meanwhile.
        encoder: of the prompt's media.
        prompt: with media.
        answer: tokens that follow.

    Returns:
        Logits ``[vocab]`` of the prompt's last token and of each token of the answer; None where
        the cache has no room for so many tokens.
    """
    plan = engine.read(prompt)
    sequence = Sequence(
        id="media trial",
        prompt=prompt,
        params=SamplingParams(),
        max_tokens=len(answer) + 1,
        scope=b"vlmkit media trial",
        plan=plan,
        output_ids=list(answer),
    )
    if len(sequence) >= engine.limits.max_sequence_tokens or engine.admit(sequence) is None:
        return None
    try:
        sequence.features = dict(enumerate(encoder.encode(prompt.media)))
        return list(_rows(engine, sequence))
    finally:
        engine.release(sequence)


def _rows(engine: Engine, sequence: Sequence) -> Iterator[Array]:
    start, last = 0, sequence.num_prompt_tokens
    single = range(last + 1, len(sequence) + 1)
    for stop in (*_stops(sequence.plan, last, engine.limits.max_chunk_tokens), *single):
        item = WorkItem(sequence, start, stop - start, num_rows=int(stop >= last))
        logits = engine.forward([item]).logits
        if item.num_rows:
            yield logits[0]  # type: ignore[index]
        start = stop


def _stops(plan: PromptPlan, num_tokens: int, most: int) -> Iterator[int]:
    """Yield where chunks of a prompt end, which is before or behind each span, never inside."""
    size = min(most, -(-num_tokens // NUM_CHUNKS))
    start = 0
    while start < num_tokens:
        stop = min(start + size, num_tokens)
        for span in plan.spans:
            if span.start < stop < span.stop:
                stop = span.start if span.start > start else span.stop
                break
        yield stop
        start = stop
