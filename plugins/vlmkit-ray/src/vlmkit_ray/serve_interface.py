"""The alpha and private interfaces of Ray Serve that vlmkit-ray uses, all in this module.

Ray may change them with any minor version, so the distribution requires one. Ray copies the router
by value to each process with a handle, so it keeps no state in this module.
"""

from collections.abc import Sequence as Seq
from typing import Any

from ray import serve
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from vlmkit.running.fleet.routing import SEQUENCE_TOKENS, Candidate, choose
from vlmkit_ray.calls import Call, Control, ReplicaLoad, Route

MODEL, CAPACITY_TOKENS = "model", "capacity_tokens"
"""What a replica states once, in its metadata."""
WAITING_TOKENS, NUM_OPEN, IS_FULL = "waiting_tokens", "num_open", "is_full"
"""What a replica states repeatedly, for routing."""
MAX_DIRECT_BYTES = 2**20
"""Larger contents travel through Ray's object store, because gRPC allows 4 MiB."""


class ContentRouter(RequestRouter):  # type: ignore[misc]  # Ray is not installed for checks
    """Sends each request to the replica that saves most of its prompt, or has least to do.

    Messages about a request go to the replica that has it, also while that is being stopped.
    """

    def initialize_state(self) -> None:
        """Begin to know nothing of the replicas."""
        self._loads: dict[ReplicaID, ReplicaLoad] = {}
        self._listed: frozenset[ReplicaID] = frozenset()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take over the running replicas, and keep those that are being stopped and have calls."""
        self._listed = frozenset(each.replica_id for each in replicas)
        busy = [
            each
            for each in self.curr_replicas.values()
            if each.replica_id not in self._listed and self._load(each).num_open
        ]
        known = {each.replica_id for each in (*replicas, *busy)}
        self._loads = {key: load for key, load in self._loads.items() if key in known}
        super().update_replicas([*replicas, *busy])

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas for a request, the best first; none if it has to wait."""
        if pending_request is not None:  # without it, Ray Serve asks again without a pause
            pending_request.routing_context.should_backoff = True
        message = pending_request.args[0] if pending_request and pending_request.args else None
        if isinstance(message, Control):
            return [[each for each in candidate_replicas if _name(each) == message.replica]]
        running = [each for each in candidate_replicas if each.replica_id in self._listed]
        if not isinstance(message, Call) or message.route is None:
            return [running]
        return self._ranked(running, message.route)

    def _ranked(self, running: Seq[RunningReplica], route: Route) -> list[list[RunningReplica]]:
        same = [each for each in running if each.replica_metadata.get(MODEL) == route.model]
        if not same:
            if running:  # an update has replaced the replicas, and will replace the caller
                route.refuse()
            return []
        candidates = [self._candidate(each, route) for each in same]
        choice = choose(candidates, route.affinity, sum(route.sizes), are_estimates_shared=False)
        chosen = same[choice.place]
        route.assign(_name(chosen), self._load(chosen))
        return [[chosen], [each for each in same if each is not chosen]]

    def on_request_routed(
        self,
        pending_request: PendingRequest,
        replica_id: ReplicaID,
        result: Any,  # noqa: ARG002
    ) -> None:
        """Note which replica accepted a request: another one if the best one was full."""
        message = pending_request.args[0] if pending_request.args else None
        replica = self.curr_replicas.get(replica_id)
        if isinstance(message, Call) and message.route is not None and replica is not None:
            message.route.assign(_name(replica), self._load(replica))

    def _candidate(self, replica: RunningReplica, route: Route) -> Candidate:
        load, stated = self._load(replica), replica.routing_stats
        num_open = max(load.num_open, stated.get(NUM_OPEN, 0))
        return Candidate(
            _name(replica),
            load.estimate.held_tokens(route.parts, route.sizes),
            max(load.waiting_tokens, stated.get(WAITING_TOKENS, 0)) + SEQUENCE_TOKENS * num_open,
            num_open,
            bool(stated.get(IS_FULL, False)),
        )

    def _load(self, replica: RunningReplica) -> ReplicaLoad:
        if replica.replica_id not in self._loads:
            capacity = replica.replica_metadata.get(CAPACITY_TOKENS, 0)
            self._loads[replica.replica_id] = ReplicaLoad(capacity)
        return self._loads[replica.replica_id]


def _name(replica: RunningReplica) -> str:
    return str(replica.replica_id.unique_id)


def name_of_this_replica() -> str:
    """Return the identity of the replica of this process, as the router knows it."""
    return str(serve.get_replica_context().replica_id.unique_id)


def method_of(handle: Any, name: str, num_bytes: int, *, is_stream: bool = False) -> Any:
    """Return a method of a deployment for a call of so many bytes.

    Small ones travel from process to process. The object store takes three times as long for each
    piece of an answer.
    """
    return handle.options(
        method_name=name, stream=is_stream, _by_reference=num_bytes > MAX_DIRECT_BYTES
    )


def is_public() -> bool:
    """Return whether other machines reach the HTTP port of this Ray Serve."""
    client = serve.context._get_global_client()  # noqa: SLF001 - no public name states it
    return client.http_config.host not in ("127.0.0.1", "localhost", "::1")
