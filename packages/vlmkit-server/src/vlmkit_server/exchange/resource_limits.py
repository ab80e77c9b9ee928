"""What this server has of each resource, who holds how much of it, and when there is more.

One for each server. Admission, ``/readyz`` and metrics ask it, and nobody counts for himself. A
caller is a tenant where keys are asked for, and a network address where they are not.

A new resource is a line in :class:`ResourceLimits` with its bound and the error for requests over
it. Who uses it claims what he is about to use before that costs anything::

    with ledger.pixels.claim(caller.account, num_pixels):  # or Overloaded, which is a 429
        ...
    with await ledger.pixels.wait(caller.account, num_pixels):  # or waits for its turn
        ...

A claim is given back when its ``with`` statement ends, however that is. All of it is used in the
event loop's thread. Sharing is :class:`~vlmkit_server.http.quota.Quota`'s business; in what
order a model computes is that of :mod:`vlmkit.running.engine_loop.fair_queue`.
"""

from typing import NamedTuple

from vlmkit_server.http.quota import Quota
from vlmkit_server.settings.server import ServerSettings


class Use(NamedTuple):
    """How much of a resource is used.

    Attributes:
        held: by one caller.
        total: by all.
        most: how much there is.
    """

    held: int
    total: int
    most: int


class ResourceLimits:
    """A room for each resource; its attributes are named as their uses are told.

    Args:
        settings: bounds.

    Attributes:
        connections: that are open.
        body_bytes: of requests that are being read and checked.
        requests: under way, those that wait included.
        logprob_bytes: of log-probabilities, as many as answers that are told whole may come to.
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
    def rooms(self) -> dict[str, Quota]:
        """All of them, by name."""
        return {name: room for name, room in vars(self).items() if isinstance(room, Quota)}

    def uses(self, caller: str) -> dict[str, Use]:
        """Return what is used of each resource, by a caller and in all."""
        return {
            name: Use(room.held_by(caller), room.num_held, room.most)
            for name, room in self.rooms.items()
        }
