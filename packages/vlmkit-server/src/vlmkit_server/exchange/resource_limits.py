"""The resource limits of this server: each limit, what every caller holds, and when there is more.

There is one object for each server. Admission, ``/readyz`` and metrics use it, and no module counts
for itself. A caller is a tenant where keys are required, and a client network where they are not.

A new resource is a line in :class:`ResourceLimits` with its limit and the error beyond it. Code
that uses a resource acquires a permit before it spends anything::

    with limits.pixels.acquire(caller.account, num_pixels):  # or Overloaded, which is a 429
        ...
    with await limits.pixels.wait(caller.account, num_pixels):  # or waits for its turn
        ...

A permit is released when its ``with`` statement ends, in any way. Everything is used in the event
loop's thread. :class:`~vlmkit_server.http.quota.Quota` shares a resource between callers;
:mod:`vlmkit.running.engine_loop.fair_queue` orders the computation of a model.
"""

from typing import NamedTuple

from vlmkit_server.http.quota import Quota
from vlmkit_server.settings.server import ServerSettings


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
    """A quota for each resource; the attributes' names are the names in metrics and ``/readyz``.

    Args:
        settings: the limits.

    Attributes:
        connections: open connections.
        body_bytes: bytes of requests that are being read and checked.
        requests: requests in progress, waiting ones included.
        logprob_bytes: bytes of log-probabilities in complete answers, by their upper bound.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.connections = Quota(settings.max_connections, "too many connections are open")
        self.body_bytes = Quota(
            settings.max_pending_body_bytes, "too many large requests are being read"
        )
        self.requests = Quota(settings.max_requests, "too many requests are under way")
        self.logprob_bytes = Quota(
            settings.max_logprob_bytes, "too many log-probabilities are asked for at once"
        )

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
