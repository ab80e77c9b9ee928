"""The interface of observers, which receive events of requests and steps and change nothing.

Inherit :class:`Observer` and implement the methods that you need; the others are never called.
Methods run in the observer's own thread, shortly after the events and in their order, so they need
no locks. An observer that raises is disabled. A slow observer loses events, but always receives
the end of a request whose acceptance it received. For that it must implement ``accepted``,
``finished`` and ``failed``. After lost cache events it receives the whole index again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.cache_events import CacheChange
from vlmkit.interfaces.sequence import Task
from vlmkit.types.completion import Chunk, FinishReason, Timings, Usage
from vlmkit.types.sampling import SamplingParams


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class RequestFacts:
    """The properties of a request when it is accepted; compared by identity.

    Attributes:
        id: its id in logs and answers.
        model: the name of the runner that serves it.
        tenant: the tenant that sent it.
        params: its sampling parameters.
        prompt_tokens: number of tokens of the prompt, images included.
        image_tokens: number of placeholder tokens of each image, in order.
        task: the kind of result: an answer, a vector or scores.
        is_chat: whether the prompt is a conversation, not plain text or tokens.
        prompt_s: time in seconds that preparing the prompt took.
        trace: the trace that it belongs to, in the format of W3C Trace Context; empty if none.
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
        reasons: the finish reason of each choice, in the order in which they ended.
        usage: the tokens that it used.
        timings: the time that its stages took.
    """

    reasons: tuple[FinishReason, ...]
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One step of the engine.

    Attributes:
        num_sequences: sequences computed in the step.
        num_tokens: tokens computed in the step.
        num_sampled: tokens sampled.
        num_preempted: sequences preempted.
        num_running: sequences admitted to the cache.
        num_waiting: sequences in the queue.
        step_s: time in seconds for planning, computing and sampling.
    """

    num_sequences: int
    num_tokens: int
    num_sampled: int
    num_preempted: int
    num_running: int
    num_waiting: int
    step_s: float


class Observer(Protocol):
    """Receives events. ``at_s`` is the time of the event in seconds since the epoch."""

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        """The scheduler accepted a request. Exactly one of ``finished`` and ``failed`` follows."""
        return

    def first_token(self, request: RequestFacts, at_s: float) -> None:
        """The first token of a request's first answer was sampled."""
        return

    def tokens(self, request: RequestFacts, chunk: Chunk, at_s: float) -> None:
        """A chunk of an answer was delivered; called for nearly every token."""
        return

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        """Every choice of a request ended; aborted choices have the reason ``abort``."""
        return

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        """A request ended with an error, or the scheduler refused it.

        Not called for a request whose prompt cannot be built or is too long.
        """
        return

    def step(self, step: StepFacts, at_s: float) -> None:
        """The engine computed a step."""
        return

    def blocks(self, change: CacheChange, at_s: float) -> None:
        """The blocks of prefixes that the engine's cache shares changed in a step.

        The first change is cleared and holds what is stored by then; so is the first one after
        lost events. Applied in order, the changes give the engine's index after each step
        (:class:`vlmkit.kit.cache_index.CacheIndex`). Not called if the engine emits no cache
        events. Blocks hold tokens of clients: do not log or publish them.
        """
        return

    def stats(self) -> Mapping[str, float]:
        """Return numbers for ``RunnerStats.observed``; called from any thread."""
        return {}

    def close(self) -> None:
        """Release all resources; no other call follows, except :meth:`stats`."""
        return
