"""What a monitor may do: collect the events and metrics of a running server, and export them.

Inherit :class:`Monitor` and write the methods that you need. A model's observers receive the events
of its requests; a monitor may provide one of them each time a model is loaded. The monitor itself
receives what only the server knows. A monitor never changes an answer. One that raises is disabled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from vlmkit.interfaces.observer import Observer
from vlmkit.types.runner_stats import RunnerStats


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class HttpRequest:
    """A received request; compared by identity.

    Attributes:
        id: its id in logs and answers.
        method: as the client wrote it.
        at_s: when its headers had arrived, in seconds since the epoch.
        traceparent: the client's trace, as W3C Trace Context writes it; not validated.
        tracestate: the state of that trace.
    """

    id: str
    method: str
    at_s: float
    traceparent: str = ""
    tracestate: str = ""


@dataclass(frozen=True, slots=True)
class HttpEnd:
    """How a request was answered.

    Attributes:
        route: the path template; empty where no route matches.
        status: the response's status; 499 if the client disconnected before.
        code: the error's code, also of an error in a stream; empty where there is none.
        took_s: time from its headers to the last byte of the response.
    """

    route: str
    status: int
    code: str
    took_s: float


@dataclass(frozen=True, slots=True)
class ModelState:
    """The state of one model of a server.

    Attributes:
        name: its name.
        state: its state, in the words of ``/readyz``.
        changes: how often it entered each state.
        load_s: how long loading took last, or takes so far.
        num_users: requests that are being answered.
        num_waiting: requests that wait for it to be loaded.
        memory_bytes: its size in the memory budget; None while unknown.
        capacity_tokens: capacity of its cache; 0 while unknown.
        counters: counters of its runner, and of earlier runners that were unloaded.
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
    """The state of a server.

    Attributes:
        status: the status of ``/readyz``.
        models: all models that are served.
        num_open: requests of any kind that are in progress.
        resources: use and limit of each limited resource.
        num_ignored: requests with ignored fields, by field.
        num_unconstrained: requests whose schemas are not enforced completely.
    """

    status: str
    models: tuple[ModelState, ...]
    num_open: int
    resources: Mapping[str, tuple[int, int]]
    num_ignored: Mapping[str, int]
    num_unconstrained: int


class Page(NamedTuple):
    """The body and media type of ``/metrics``."""

    content: bytes
    media_type: str


class Monitor(Protocol):
    """Collects events and metrics of a server."""

    def observer(self, model: str) -> Observer | None:  # noqa: ARG002
        """Return an observer of a model's requests, or None; called each time the model is loaded.

        Several observers of one model are active at once where it has several pipelines, and
        while one replaces another.
        """
        return None

    def began(self, request: HttpRequest) -> str:  # noqa: ARG002
        """A request arrived. Called in the event loop: return quickly.

        Returns:
            The trace that the request's work belongs to, as W3C Trace Context writes it; empty
            where nothing is traced.
        """
        return ""

    def ended(self, request: HttpRequest, end: HttpEnd) -> None:  # noqa: ARG002
        """A request was answered. Called in the event loop: return quickly."""
        return

    def lagged(self, lag_s: float) -> None:  # noqa: ARG002
        """The event loop started a task ``lag_s`` late. Called in the event loop, always."""
        return

    def page(self, state: ServerState, accept: str) -> Page | None:  # noqa: ARG002
        """Return the page of ``/metrics``, or None. Called in a thread of its own.

        All monitors are asked; the first one in ``monitors.use`` that has a page provides it. It is
        the only page that a monitor provides. Whether there is one must never change, and must not
        depend on ``accept``.

        Args:
            state: the server's state.
            accept: the client's ``Accept`` header.
        """
        return None

    def close(self) -> None:
        """Send what is left and release everything; only another ``close`` may follow."""
        return
