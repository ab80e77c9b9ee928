"""Engine steps for comparing an engine on a device with one on the CPU."""

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Prompt
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing.contracts.engine_host import EngineHost, Features
from vlmkit_testing.contracts.engine_sequence import EngineSequence

TEXTS = tuple(Prompt(tuple(range(20 + i, 50 + 3 * i))) for i in range(3))


def logits_of(
    engine: Engine,
    prompts: Seq[Prompt] = TEXTS,
    features: Features = lambda _: {},
    *,
    chunk_tokens: int = 13,
) -> list[np.ndarray]:
    """Return the logits of prompts that are read in chunks, and of answers that grow together."""
    host = EngineHost(engine, features)
    sequences, found = begin(host, prompts, chunk_tokens)
    for token in range(30, 34):
        items = [host.next_item(sequence, token) for sequence in sequences]
        found.append(host.step(items).copy())
    for sequence in sequences:
        engine.release(sequence)
    return found


def logits_about_images(engine: Engine, encoder: MediaEncoder, prompt: Prompt) -> list[np.ndarray]:
    """Return the logits of an answer to a prompt with images, token by token."""

    def features(prompt: Prompt) -> dict[int, MediaFeatures]:
        return dict(enumerate(encoder.encode(prompt.media))) if prompt.media else {}

    host = EngineHost(engine, features)
    sequence = host.sequence(prompt)
    assert host.admit(sequence) == 0
    host.prefill(sequence)
    return [host.step([host.next_item(sequence, 30 + i)]).copy() for i in range(5)]


def for_sampler(sequence: EngineSequence, params: SamplingParams | None = None) -> EngineSequence:
    """Add the attributes that a sampler reads to an engine's sequence, and return it."""
    more: dict[str, Any] = {
        "params": params or SamplingParams(),
        "output_ids": sequence.answer,
        "seed": 0,
        "eos_ids": frozenset(),
        "banned_ids": (),
        "kept": {},
        "task": "generate",
        "given": (),
        "guide": None,
    }
    vars(sequence).update(more)
    return sequence


def begin(
    host: EngineHost, prompts: Seq[Prompt] = TEXTS, chunk_tokens: int = 13
) -> tuple[list[EngineSequence], list[np.ndarray]]:
    """Read prompts in chunks; return their sequences and the logits of their last tokens."""
    sequences, found = [host.sequence(prompt) for prompt in prompts], []
    for sequence in sequences:
        assert host.admit(sequence) == 0
        found.append(host.prefill(sequence, chunk_tokens=chunk_tokens).copy())
    return sequences, found
