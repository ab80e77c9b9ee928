"""What a monitor may do: look on while a server runs, and show or send what it saw.

Inherit :class:`Monitor` and write the methods that you need. How the requests of a model fare is
told to its observers, one of which a monitor can be asked for each time a model is loaded; what is
told here is what the server knows besides. Nothing that a monitor does changes an answer. One that
raises is switched off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from vlmkit.interfaces.observer import Observer
from vlmkit.types.runner_stats import RunnerStats


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class HttpRequest:
    """A request as it came; compared by identity.

    Attributes:
        id: how logs and answers call it.
        method: as the client wrote it.
        at_s: when its headers were there, in seconds since the epoch.
        traceparent: whose trace it is part of, as W3C Trace Context writes that; whatever a client
            sent.
        tracestate: what belongs to it.
    """

    id: str
    method: str
    at_s: float
    traceparent: str = ""
    tracestate: str = ""


@dataclass(frozen=True, slots=True)
class HttpEnd:
    """How it was answered.

    Attributes:
        route: the path with names in the place of what differs; empty where there is none.
        status: of the answer; 499 where the client was gone before.
        code: of its error, also of one in a stream; empty where there is none.
        took_s: from its headers to the answer's last byte.
    """

    route: str
    status: int
    code: str
    took_s: float


@dataclass(frozen=True, slots=True)
class ModelState:
    """How far one model of a server is.

    Attributes:
        name: how it is called.
        state: of the words that ``/readyz`` knows.
        changes: how often it came to be in each of these states.
        load_s: how long loading took last, or takes so far.
        num_users: requests that are being answered.
        num_waiting: requests that wait for it to be loaded.
        memory_bytes: what it counts for; None while nobody knows.
        capacity_tokens: that its cache holds; 0 while nobody knows.
        counters: what its runner counted, and those that were unloaded before.
        stats: of its runner; None while it is not in memory.
    """

    name: str
    state: str
    changes: Mapping[str, int]
    load_s: float
    num_users: int
    num_waiting: int
    memory_bytes: int | None
    capacity_tokens: int
    counters: Mapping[str, int]
    stats: RunnerStats | None


@dataclass(frozen=True, slots=True)
class ServerState:
    """How a server is at a moment.

    Attributes:
        status: the word of ``/readyz``.
        models: all that are served.
        num_open: requests of any kind that are under way.
        resources: what is used of each resource of which there is so much, and how much there is.
        num_ignored: requests with keys that were ignored, by key.
        num_unconstrained: requests whose answers are not held to all of their schemas.
    """

    status: str
    models: tuple[ModelState, ...]
    num_open: int
    resources: Mapping[str, tuple[int, int]]
    num_ignored: Mapping[str, int]
    num_unconstrained: int


class Page(NamedTuple):
    """What ``/metrics`` answers."""

    content: bytes
    media_type: str


class Monitor(Protocol):
    """Looks on a server."""

    def observer(self, model: str) -> Observer | None:  # noqa: ARG002
        """Return who is told how a model's requests fare; called each time it is loaded.

        Several of one model are told at once only while one replaces another.
        """
        return None

    def began(self, request: HttpRequest) -> str:  # noqa: ARG002
        """A request came. Called in the event loop: be quick.

        Returns:
            Which trace what is done for it belongs to, as W3C Trace Context writes that; empty
            where nothing is traced.
        """
        return ""

    def ended(self, request: HttpRequest, end: HttpEnd) -> None:  # noqa: ARG002
        """A request was answered. Called in the event loop: be quick."""
        return

    def lagged(self, lag_s: float) -> None:  # noqa: ARG002
        """The event loop came so much later to a task than it was due. Called there, always."""
        return

    def page(self, state: ServerState, accept: str) -> Page | None:  # noqa: ARG002
        """Return what ``/metrics`` answers; None for nothing. Called in a thread of its own.

        Of several monitors, all are asked, and the first in ``monitors.use`` that has a page shows
        it. It is the only page of a server that is a monitor's.

        Args:
            state: of the server.
            accept: media types that the client takes, as it wrote them.
        """
        return None

    def close(self) -> None:
        """Let go of everything, and send what is left; no call follows but another of it."""
        return
