"""Computes one answer with an engine and an encoder, for self-checks while a model is loaded.

Nothing else may use engine or encoder yet. The engine itself compares the result.
"""

from collections.abc import Iterator, Sequence as Seq

from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Array, Prompt, PromptPlan
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem
from vlmkit.types.sampling import SamplingParams

NUM_CHUNKS = 3  # of a prompt, if its spans allow


def answered(
    engine: Engine, encoder: MediaEncoder, prompt: Prompt, answer: Seq[int]
) -> list[Array] | None:
    """Compute a prompt in chunks, then an answer token by token; leaves nothing in the cache.

    Args:
        engine: the engine, which must compute nothing else meanwhile.
        encoder: the encoder of the prompt's media.
        prompt: a prompt with media.
        answer: the tokens that follow the prompt.

    Returns:
        Logits ``[vocab]`` of the prompt's last token and of each token of the answer; None if the
        cache has no room for so many tokens.
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


def _stops(plan: PromptPlan, num_tokens: int, max_tokens: int) -> Iterator[int]:
    """Yield the ends of the chunks of a prompt, never inside a span."""
    size = min(max_tokens, -(-num_tokens // NUM_CHUNKS))
    start = 0
    while start < num_tokens:
        stop = min(start + size, num_tokens)
        for span in plan.spans:
            if span.start < stop < span.stop:
                stop = span.start if span.start > start else span.stop
                break
        yield stop
        start = stop
