"""What the config says of a model, as what a server takes."""

import logging
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from vlmkit.assembly.load import assemble, find_files
from vlmkit.assembly.sources import name_of
from vlmkit.cli.loading import Stages
from vlmkit.config.renderer_plan import WorkerProcesses
from vlmkit.kit.safetensors_header import weights_of
from vlmkit_server.fleet.model_spec import ModelSpec
from vlmkit_server.settings.server import ServerSettings

if TYPE_CHECKING:
    from vlmkit.config import Config, ModelEntry
    from vlmkit.interfaces.runner import Runner
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.loader import Plugins
    from vlmkit_server.interfaces.monitor import Monitor


log = logging.getLogger(__name__)


def model_spec(
    entry: "ModelEntry",
    config: "Config",
    plugins: "Plugins",
    monitors: "Mapping[str, Monitor]" = MappingProxyType({}),
) -> ModelSpec:
    """Return how one model is served; each stage of its loading gets a line on standard error.

    Where the log is one for programs, it says only that a model is loaded.

    Args:
        entry: the model.
        config: how it is built.
        plugins: of what.
        monitors: who is told how its requests fare, each by its name.
    """
    observers = {
        f"monitors.{name}": partial(monitor.observer, name_of(entry))
        for name, monitor in monitors.items()
    }

    settings = config.table("server", ServerSettings)
    workers = WorkerProcesses(
        num_renderers=settings.renderers,
        needs_renderers=settings.num_renderers is not None,
        renderer_memory_bytes=settings.renderer_memory_bytes,
        compiles_constraints=settings.constraint_workers,
    )

    def load() -> "Runner":
        stages = None
        if settings.log_format == "json":
            log.info("loading %r", name_of(entry))
        else:
            click.echo(f"loading {name_of(entry)!r}", err=True)
            stages = Stages(lists=True)
        return assemble(entry, config, plugins, stages, observers, workers)

    def weigh() -> int:
        return weight_bytes(find_files(entry, config, plugins))

    return ModelSpec(
        load=load,
        aliases=entry.aliases,
        when=entry.load,
        idle_unload_s=entry.idle_unload_s,
        memory_bytes=entry.memory_bytes,
        on_engine_failure=entry.on_engine_failure,
        weigh=weigh,
    )


def weight_bytes(checkpoint: "Checkpoint") -> int:
    """Return how large the files of a model's weights are; the graphs', where these are larger."""
    graphs = [*checkpoint.path.glob("*.onnx"), *checkpoint.path.glob("*.onnx.data")]
    return max(weights_of(checkpoint).num_bytes, sum(path.stat().st_size for path in graphs))
