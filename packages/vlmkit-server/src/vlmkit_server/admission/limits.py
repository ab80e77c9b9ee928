"""The limits that a request passes, one row each, and the quotas of this server.

A row states what is limited, by which setting, how callers share it, the error beyond it, and when
a refused caller should try again. A caller is a tenant where keys are required, and a client
network where they are not. :class:`~vlmkit_server.admission.admission.Admission` consults the rows.

A new shared resource is a row with an amount, and an attribute of :class:`ResourceLimits`. It does
not implement a limit: :class:`~vlmkit_server.http.quota.Quota` shares a resource between callers,
:mod:`vlmkit_server.rate_limits` meters usage over time, and
:mod:`vlmkit.running.engine_loop.fair_queue` orders the computation of a model.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from vlmkit.errors import QueueFull
from vlmkit_server.http.errors import Overloaded, RateLimited, TooLate
from vlmkit_server.http.quota import Quota
from vlmkit_server.settings.server import ServerSettings

Stage = Literal["connection", "headers", "key", "body", "model", "prompt", "whole request"]
"""What is known of a request when a limit is consulted, in this order."""

Share = Literal["fair, evicting", "fair", "first come", "each key or address", "each request"]
"""How callers share a limit: a fair share may be enforced by evicting a holder."""

Retry = Literal["its drain rate", "drain rate of requests", "its period"]
"""What the Retry-After of a refusal is computed from."""


class Limit(NamedTuple):
    """A row of the table, which `docs/explanation/life-of-a-request.md` shows.

    Attributes:
        resource: what is limited; a quota has this name in metrics and ``/readyz``.
        settings: where the operator sets it.
        stage: when it is consulted.
        share: how callers share it.
        code: the code of the error; a connection gets a status without a body.
        message: the error's message; empty if it depends on the request.
        retry: when a refused caller should try again.
        amount: the amount; None where another module counts.
    """

    resource: str
    settings: str
    stage: Stage
    share: Share
    code: str
    message: str
    retry: Retry
    amount: Callable[[ServerSettings], int] | None = None

    def most(self, settings: ServerSettings) -> int:
        """Return the amount that all callers may have together."""
        if self.amount is None:
            raise TypeError(f"another module counts {self.resource}")
        return self.amount(settings)

    def quota(self, settings: ServerSettings) -> Quota:
        """Return a quota of this row."""
        return Quota(self.most(settings), self.message)


CONNECTIONS = Limit(
    "connections",
    "server.max_connections",
    "connection",
    "fair, evicting",
    "503",
    "too many connections are open",
    "its drain rate",
    lambda settings: settings.max_connections,
)
REQUEST_RATE = Limit(
    "requests in a period",
    "server.limits",
    "key",
    "each key or address",
    RateLimited.code,
    "",
    "its period",
)
REQUESTS = Limit(
    "requests",
    "server.max_requests",
    "body",
    "fair",
    Overloaded.code,
    "too many requests are under way",
    "its drain rate",
    lambda settings: settings.max_requests,
)
BODY_BYTES = Limit(
    "body_bytes",
    "server.max_pending_body_bytes",
    "body",
    "fair, evicting",
    Overloaded.code,
    "too many large requests are being read",
    "its drain rate",
    lambda settings: settings.max_pending_body_bytes,
)
WAITING_FOR_MODELS = Limit(
    "requests that wait for models to load",
    "half of server.max_requests",
    "model",
    "first come",
    Overloaded.code,
    "too many requests wait for their models",
    "drain rate of requests",
    lambda settings: max(1, settings.max_requests // 2),
)
QUEUE = Limit(
    "requests in the queue of a model",
    "scheduler.max_waiting",
    "prompt",
    "first come",
    QueueFull.code,
    "",
    "drain rate of requests",
)
TOKEN_RATE = Limit(
    "tokens, image tokens and images in a period",
    "server.limits",
    "prompt",
    "each key or address",
    RateLimited.code,
    "",
    "its period",
)
LOGPROB_BYTES = Limit(
    "logprob_bytes",
    "server.max_logprob_bytes",
    "prompt",
    "fair",
    Overloaded.code,
    "too many log-probabilities are asked for at once",
    "its drain rate",
    lambda settings: settings.max_logprob_bytes,
)
TIME = Limit(
    "time",
    "server.request_timeout_s",
    "whole request",
    "each request",
    TooLate.code,
    "",
    "drain rate of requests",
)

LIMITS = (
    *(CONNECTIONS, REQUEST_RATE, REQUESTS, BODY_BYTES, WAITING_FOR_MODELS),
    *(LOGPROB_BYTES, TOKEN_RATE, QUEUE, TIME),
)
"""All limits, in the order in which a request meets them."""


class Use(NamedTuple):
    """How much of a resource is in use.

    Attributes:
        held: by one caller.
        total: by all callers.
        most: the limit.
    """

    held: int
    total: int
    most: int


class ResourceLimits:
    """The quotas of a server; it is used in the event loop's thread.

    Args:
        settings: the limits.

    Attributes:
        connections: open connections.
        body_bytes: bytes of requests that are being read and checked.
        requests: requests in progress, waiting ones included.
        logprob_bytes: bytes of log-probabilities in complete answers, by their upper bound.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.connections = CONNECTIONS.quota(settings)
        self.body_bytes = BODY_BYTES.quota(settings)
        self.requests = REQUESTS.quota(settings)
        self.logprob_bytes = LOGPROB_BYTES.quota(settings)

    @property
    def quotas(self) -> dict[str, Quota]:
        """All quotas, by name."""
        return {name: quota for name, quota in vars(self).items() if isinstance(quota, Quota)}

    def uses(self, caller: str) -> dict[str, Use]:
        """Return the use of each resource, by one caller and by all."""
        return {
            name: Use(quota.held_by(caller), quota.num_held, quota.limit)
            for name, quota in self.quotas.items()
        }
