"""What an ingress sends to replicas: calls with frames of the wire codec, and where they may go.

A route stays in the process of the ingress: the request router of Ray Serve runs there, too, and
finds it beside the frame. It does not know Ray.
"""

import threading
from collections.abc import Callable, Sequence as Seq

from vlmkit.running.fleet.cache_estimate import CacheEstimate
from vlmkit.running.fleet.prompt_keys import Segment


def _ignore() -> None:
    pass


class ReplicaLoad:
    """What one ingress sent to one replica. Thread-safe.

    Args:
        capacity_tokens: size of the replica's prefix cache.

    Attributes:
        estimate: what its caches hold.
        waiting_tokens: tokens of prompts that have no answer yet.
        num_open: open calls.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.estimate = CacheEstimate(capacity_tokens)
        self.waiting_tokens = self.num_open = 0
        self._lock = threading.Lock()

    def add(self, num_tokens: int, num_calls: int) -> None:
        """Change the numbers by so much."""
        with self._lock:
            self.waiting_tokens += num_tokens
            self.num_open += num_calls


class Route:
    """Where a request may go, and where it went.

    Args:
        model: the digest of the facts that its replica must have.
        parts: the parts of its prompt.
        sizes: the number of tokens of each part.
        affinity: selects its favourite replica.
        refuse: called, in any thread, if all replicas that run have other facts.

    Attributes:
        model, parts, sizes, affinity, refuse: as above.
        replica: the identity of the replica that has it; empty before one has.
    """

    def __init__(
        self,
        model: str,
        parts: Seq[Segment] = (),
        sizes: Seq[int] = (),
        affinity: bytes = b"",
        refuse: Callable[[], None] = _ignore,
    ) -> None:
        self.model, self.refuse = model, refuse
        self.parts, self.sizes, self.affinity = parts, sizes, affinity
        self.replica = ""
        self._load: ReplicaLoad | None = None
        self._num_waiting = 0
        self._is_over = False
        self._lock = threading.Lock()

    def assign(self, replica: str, load: ReplicaLoad) -> None:
        """Note the replica that gets the request, in place of the one before."""
        with self._lock:
            if self._is_over or self.replica == replica:
                return
            self._leave()
            held = load.estimate.held_tokens(self.parts, self.sizes)
            self._num_waiting = max(0, sum(self.sizes) - held)
            self.replica, self._load = replica, load
            load.add(self._num_waiting, 1)
            load.estimate.add(self.parts, self.sizes)

    def begin_answer(self) -> None:
        """Note that the prompt is computed."""
        with self._lock:
            if self._load is not None:
                self._load.add(-self._num_waiting, 0)
                self._num_waiting = 0

    def end(self) -> None:
        """Note that the call is over; it is not assigned again."""
        with self._lock:
            self._is_over = True
            self._leave()

    def _leave(self) -> None:
        load, self._load = self._load, None
        if load is not None:
            load.add(-self._num_waiting, -1)
            self._num_waiting = 0


class Call:
    """A request, or a call such as tokenizing, with which a stream of frames begins.

    Args:
        key: identifies it at its replica, so that later messages find it.
        content: the frame.
        route: where it may go; None at the replica.
    """

    def __init__(self, key: str, content: bytes, route: Route | None = None) -> None:
        self.key, self.content, self.route = key, content, route

    def __reduce__(self) -> tuple[type["Call"], tuple[str, bytes]]:
        return Call, (self.key, self.content)


class Control:
    """Later messages of a call, for the replica that has it.

    Args:
        key: of the call.
        content: the frames.
        replica: the identity of the replica.
    """

    def __init__(self, key: str, content: bytes, replica: str) -> None:
        self.key, self.content, self.replica = key, content, replica
