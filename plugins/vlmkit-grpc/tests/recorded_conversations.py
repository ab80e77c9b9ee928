"""Turns of a recorded trace of a chat service, for simulated workers.

A line of the trace is a JSON object with ``timestamp`` (ms), ``input_length`` and ``output_length``
(tokens), and ``hash_ids``: a number for each 512 tokens of the prompt, equal in two prompts exactly
if both are equal up to there. Mooncake's traces (FAST '25) have this form. They have neither texts
nor images nor conversations. A text that is a function of the numbers stands for the prompt, one
character for each token. A prompt that continues an earlier one is a later turn of a conversation.
Images can be added by chance; nothing of them is recorded.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from routing_simulation import Turn

from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.request import Request

BLOCK_TOKENS = 512


@dataclass(frozen=True)
class _Recorded:
    """A conversation up to one of its prompts.

    Attributes:
        number: of the conversation.
        messages: with the text of the prompt.
        num_tokens: of the texts.
        images: tokens of each image, by its content.
    """

    number: int
    messages: tuple[Message, ...] = ()
    num_tokens: int = 0
    images: tuple[tuple[bytes, int], ...] = ()


def recorded(lines: Iterable[str | bytes], image_share: float = 0.0, seed: int = 0) -> list[Turn]:
    """Return the turns of a trace.

    Args:
        lines: the trace, in the order of arrival.
        image_share: the share of conversations to which one to three images are added; a fifth of
            the images is common to many.
        seed: of the choice of conversations and images.
    """
    chance = random.Random(seed)
    shared = [(chance.randbytes(16), chance.choice([256, 576, 1024])) for _ in range(12)]
    ends: dict[int, _Recorded] = {}  # by the last full block of a prompt
    turns, num_conversations = [], 0
    for record in map(json.loads, lines):
        ids, num_tokens = record["hash_ids"], record["input_length"]
        full = ids[: num_tokens // BLOCK_TOKENS]
        # The first block is a system prompt, which is no conversation.
        before = next((ends[key] for key in reversed(full[1:]) if key in ends), None)
        if before is None or before.num_tokens >= num_tokens:
            before = _Recorded(num_conversations, images=_images(chance, image_share, shared))
            num_conversations += 1
        prompt = _continued(before, ids, num_tokens)
        if len(full) > 1:
            ends[full[-1]] = prompt
        turns.append(
            Turn(
                record["timestamp"] / 1000,
                prompt.number,
                Request(messages=list(prompt.messages)),
                tuple(_block_keys(full, prompt.images)),
                dict(prompt.images),
                num_tokens + sum(size for _, size in prompt.images),
                record["output_length"],
                BLOCK_TOKENS,
            )
        )
    return turns


def _images(
    chance: random.Random, share: float, shared: Sequence[tuple[bytes, int]]
) -> tuple[tuple[bytes, int], ...]:
    if chance.random() >= share:
        return ()
    own = [
        (chance.randbytes(16), chance.choice([64, 256, 576, 729, 1024, 1500]))
        for _ in range(chance.choice([1, 1, 1, 2, 3]))
    ]
    return tuple(chance.choice(shared) if chance.random() < 0.2 else each for each in own)


def _continued(before: _Recorded, ids: Sequence[int], num_tokens: int) -> _Recorded:
    """Return a conversation whose prompt has become longer."""
    messages, begin = list(before.messages), before.num_tokens
    if not messages:
        begin = min(BLOCK_TOKENS, num_tokens)
        images = [ImagePart(Image((8, 8), content)) for content, _ in before.images]
        messages.append(Message("system", (TextPart(_text(ids, 0, begin)),)))
    else:
        images = []
    messages.append(Message("user", (*images, TextPart(_text(ids, begin, num_tokens)))))
    return _Recorded(before.number, tuple(messages), num_tokens, before.images)


def _text(ids: Sequence[int], begin: int, end: int) -> str:
    """Return the characters that stand for tokens of a prompt."""
    first = begin // BLOCK_TOKENS
    blocks = (f"{number:<16}" * (BLOCK_TOKENS // 16) for number in ids[first:])
    return "".join(blocks)[begin - first * BLOCK_TOKENS : end - first * BLOCK_TOKENS]


def _block_keys(ids: Sequence[int], images: Sequence[tuple[bytes, int]]) -> Iterator[int]:
    """Yield the keys of full blocks; images stand behind the system prompt, in the first question.

    A block of an image's tokens is one of the trace's size too.
    """
    if not images:
        yield from ids
        return
    yield from ids[:1]
    key = hashlib.blake2b(repr(images).encode(), digest_size=8)
    for number in range(sum(size for _, size in images) // BLOCK_TOKENS):
        yield _key(key.digest(), number)
    for number in ids[1:]:
        yield _key(key.digest(), number + 2**32)


def _key(before: bytes, number: int) -> int:
    digest = hashlib.blake2b(before + number.to_bytes(8), digest_size=8).digest()
    return int.from_bytes(digest)
