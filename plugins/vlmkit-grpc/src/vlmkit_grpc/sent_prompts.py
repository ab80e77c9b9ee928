"""The prompts that gateways have sent to a worker: the worker shows each gateway those of others.

A prompt is here a list of digests and sizes. Nothing of it can change an answer: gateways estimate
from it what the worker's caches hold. So the oldest prompts are dropped where room is limited.
"""

from collections import deque
from collections.abc import Iterator, Sequence as Seq

from vlmkit.errors import WireError
from vlmkit.running.fleet.prompt_keys import Segment
from vlmkit_grpc.protocol.worker_pb2 import Prompt, PromptPart

MAX_PARTS = 4096
"""The most parts of one prompt: 2 million characters of text. Later ones are not shown."""
MAX_BYTES = 4 * 2**20
"""The most bytes of prompts that are kept in one place."""
_KEY_BYTES = 16
_MAX_TOKENS = 2**31 - 1


class RecentPrompts:
    """The latest prompts, at most :data:`MAX_BYTES` of them."""

    def __init__(self) -> None:
        self._prompts: deque[Prompt] = deque()
        self._num_bytes = 0

    def add(self, prompt: Prompt) -> None:
        """Append a prompt; the oldest ones leave if there are too many."""
        self._prompts.append(prompt)
        self._num_bytes += prompt.ByteSize()
        while self._num_bytes > MAX_BYTES:
            self.take()

    def take(self) -> Prompt | None:
        """Remove and return the oldest prompt; None if there is none."""
        if not self._prompts:
            return None
        prompt = self._prompts.popleft()
        self._num_bytes -= prompt.ByteSize()
        return prompt

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self._prompts)


def prompt_of(segments: Seq[Segment], sizes: Seq[int]) -> Prompt:
    """Return what others learn of a prompt.

    Args:
        segments: its parts.
        sizes: the number of tokens of each part.
    """
    known = list(zip(segments, sizes, strict=True))[:MAX_PARTS]
    return Prompt(
        parts=[
            PromptPart(key=part.key, num_tokens=min(size, _MAX_TOKENS), image=part.image)
            for part, size in known
        ]
    )


def segments_of(prompt: Prompt) -> list[Segment]:
    """Return the parts of a prompt; each states its tokens.

    Raises:
        WireError: it has too many parts, or one whose key is no digest.
    """
    check_prompt(prompt)
    return [
        Segment(part.key, num_tokens=part.num_tokens, image=part.image) for part in prompt.parts
    ]


def check_prompt(prompt: Prompt) -> None:
    """Check a prompt that another process sent.

    Raises:
        WireError: it has too many parts, or one whose key is no digest.
    """
    if len(prompt.parts) > MAX_PARTS:
        raise WireError(f"a prompt has {len(prompt.parts)} parts, and {MAX_PARTS} are the most")
    for part in prompt.parts:
        if len(part.key) != _KEY_BYTES or len(part.image) not in (0, _KEY_BYTES):
            raise WireError("a part of a prompt has a key that is no digest")
