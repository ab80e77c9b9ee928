"""Builds the runner ``grpc`` of a model's reference: of one worker, or of several."""

import logging
from collections.abc import Sequence as Seq
from functools import partial

from vlmkit.errors import EngineError
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Runner
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.remote_runner.messages import Started
from vlmkit.running.remote_runner.quarantine import Quarantine
from vlmkit.running.remote_runner.runner import RemoteRunner
from vlmkit_grpc.addresses import worker_reference
from vlmkit_grpc.fleet.runner import FleetRunner
from vlmkit_grpc.peer import GrpcPeer

log = logging.getLogger(__name__)


def build_runner(context: BuildContext) -> Runner:
    """Connect to the workers of a reference, and return the runner of them.

    Raises:
        ConfigError: the reference or a setting is invalid.
        EngineError: no worker is there, or the first one runs another model than expected.
    """
    reference = worker_reference(context.reference)
    peers = [
        GrpcPeer(address, reference.model, context.settings, context.name)
        for address in reference.addresses
    ]
    if len(peers) == 1:
        return RemoteRunner(peers[0], _observers(context), context.on_stage)
    return FleetRunner(_connected(peers, context), peers)


def _connected(peers: Seq[GrpcPeer], context: BuildContext) -> list[RemoteRunner]:
    """Return a runner for each worker; some may be connected later.

    The first that can be reached decides which model the others must have.
    """
    runners: dict[GrpcPeer, RemoteRunner] = {}
    known: Started | None = None
    errors: list[EngineError] = []
    connect = partial(RemoteRunner, on_stage=context.on_stage, quarantine=Quarantine())
    for peer in peers:
        try:
            runners[peer] = connect(peer, _observers(context))
        except EngineError as error:
            errors.append(error)
            continue
        known = runners[peer].started()
        break
    first = next(iter(runners), None)
    if first is None or known is None:
        raise errors[0]
    for peer in peers:
        if peer is not first:
            peer.expected, peer.expected_facts = first.expected, known.facts
            runners[peer] = connect(peer, _observers(context), known=known)
    return [runners[peer] for peer in peers]


def _observers(context: BuildContext) -> dict[str, Observer]:
    """Return new observers of the requests of one worker, by name."""
    made = {name: make() for name, make in context.observers.items()}
    return {name: observer for name, observer in made.items() if observer is not None}
