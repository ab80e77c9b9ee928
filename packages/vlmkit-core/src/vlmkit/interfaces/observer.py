"""What an observer may do: look on while requests are served, and change nothing.

Inherit :class:`Observer` and write the methods that you need; what is left out is never called.
They run in a thread of the observer's own, soon after what they tell of and in its order, so none
needs a lock. An observer that raises is switched off; one that is too slow loses events, but no end
of a request whose acceptance it was told, if it has methods for all three.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.sequence import Task
from vlmkit.types.completion import Chunk, FinishReason, Timings, Usage
from vlmkit.types.sampling import SamplingParams


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class RequestFacts:
    """What is known of a request when it is accepted; compared by identity.

    Attributes:
        id: how logs and answers call it.
        model: the name of the runner that serves it.
        tenant: whose request it is.
        params: how its tokens are chosen.
        prompt_tokens: tokens of the prompt, images included.
        image_tokens: placeholder tokens of each image, in order.
        task: what is wanted.
        is_chat: whether the prompt is a conversation, and no text or tokens as they are.
        prompt_s: how long making the prompt took.
        trace: what the request belongs to, as W3C Trace Context writes that; empty for nothing.
    """

    id: str
    model: str
    tenant: str
    params: SamplingParams
    prompt_tokens: int
    image_tokens: tuple[int, ...] = ()
    task: Task = "generate"
    is_chat: bool = True
    prompt_s: float = 0.0
    trace: str = ""


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How a request ended.

    Attributes:
        reasons: why each of its choices ended, in the order of their ends.
        usage: what it took.
        timings: where its time went.
    """

    reasons: tuple[FinishReason, ...]
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One step of the engine.

    Attributes:
        num_sequences: sequences that it computed.
        num_tokens: tokens that it computed.
        num_sampled: tokens that were chosen.
        num_preempted: sequences that lost their room.
        num_running: sequences that have a place.
        num_waiting: sequences that wait for one.
        step_s: how long planning, computing and choosing took.
    """

    num_sequences: int
    num_tokens: int
    num_sampled: int
    num_preempted: int
    num_running: int
    num_waiting: int
    step_s: float


class Observer(Protocol):
    """Looks on. ``at_s`` is when it happened, in seconds since the epoch."""

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        """The scheduler took a request. Exactly one of finished and failed will follow."""
        return

    def first_token(self, request: RequestFacts, at_s: float) -> None:
        """The first token of a request's first answer was chosen."""
        return

    def tokens(self, request: RequestFacts, chunk: Chunk, at_s: float) -> None:
        """A piece of an answer was handed out; called for nearly every token."""
        return

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        """Every choice of a request ended; those that were aborted say so."""
        return

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        """A request ended with an error, also one that the scheduler refused.

        One of which no prompt can be made, or that is too long, is not told of.
        """
        return

    def step(self, step: StepFacts, at_s: float) -> None:
        """The engine computed a step."""
        return

    def stats(self) -> Mapping[str, float]:
        """Return numbers for ``RunnerStats.observed``; called from any thread."""
        return {}

    def close(self) -> None:
        """Let go of everything; no call follows, but of :meth:`stats`."""
        return
