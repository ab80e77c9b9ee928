"""The hooks of vlmkit-events. Imports nothing heavy: the build function does."""

import importlib.util

from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_events.settings import KvEventsSettings
from vlmkit_server.interfaces.monitor import Monitor

VLMKIT_API = (1, 0)


def _why_not() -> str | None:
    found = importlib.util.find_spec("zmq")
    return None if found else "the package pyzmq is not installed"


def _build(context: BuildContext) -> Monitor:
    from vlmkit_events.monitor import KvEventsMonitor

    return KvEventsMonitor(context.settings)


@hookimpl
def vlmkit_register_monitors(registry: Registry[Monitor]) -> None:
    """Register ``monitors.use = ["kv_events"]``."""
    registry.add(
        "kv_events",
        _build,
        why_not=_why_not,
        settings=KvEventsSettings,
        description="KV cache events over ZMQ in vLLM's format, for cache-aware routers",
    )
