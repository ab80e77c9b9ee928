"""Builds the runner ``grpc`` of a model's reference."""

from vlmkit.interfaces.runner import Runner
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.remote_runner.runner import RemoteRunner
from vlmkit_grpc.addresses import worker_reference
from vlmkit_grpc.peer import GrpcPeer


def build_runner(context: BuildContext) -> Runner:
    """Connect to the worker of a reference, and return the runner of it.

    Raises:
        ConfigError: the reference or a setting is invalid.
        EngineError: the worker is not there, or runs another model than expected.
    """
    reference = worker_reference(context.reference)
    made = {name: make() for name, make in context.observers.items()}
    observers = {name: observer for name, observer in made.items() if observer is not None}
    peer = GrpcPeer(reference, context.settings, context.name)
    return RemoteRunner(peer, observers, context.on_stage)
