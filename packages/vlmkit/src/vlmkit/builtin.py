"""What comes with the core: its components, by the same hooks as everyone else's.

Its commands are only named here: they run whether or not plugins can be loaded.
"""

from typing import Any

from vlmkit.hookspecs import hookimpl
from vlmkit.protocols import Sampler, Scheduler
from vlmkit.registry import BuildContext, Registry
from vlmkit.scheduler import SchedulerSettings

VLMKIT_API = 1
COMMANDS = ("ask", "chat", "config", "doctor", "models", "plugins", "serve", "verify")
"""Names that no plugin's command can have; the command line runs these without loading plugins."""
PRIORITY = 10
"""More than the 0 of a plugin that states none: installing one must not change any answer."""


def _build_scheduler(context: BuildContext) -> Scheduler:
    from vlmkit.scheduler import ContinuousScheduler

    return ContinuousScheduler(context.settings)


def _build_sampler(_: BuildContext) -> Sampler:
    from vlmkit.sampler import ArraySampler

    return ArraySampler()


@hookimpl
def vlmkit_register_schedulers(registry: Registry[Any]) -> None:
    """Offer ``scheduler.use = "continuous"``."""
    registry.add(
        "continuous",
        _build_scheduler,
        settings=SchedulerSettings,
        priority=PRIORITY,
        description="continuous batching, decode first, chunked prefill, priorities",
    )


@hookimpl
def vlmkit_register_samplers(registry: Registry[Any]) -> None:
    """Offer ``sampler.use = "array"``."""
    registry.add(
        "array",
        _build_sampler,
        priority=PRIORITY,
        description="every OpenAI sampling parameter, on NumPy or torch arrays",
    )
