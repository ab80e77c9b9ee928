"""Builds what a server needs from its config: model specs, APIs, tool sources and monitors.

It also collects the request fields of plugins, which are known before a model is loaded. Its errors
are those of :func:`vlmkit.assembly.load.load`, which builds the models.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import click

from vlmkit.assembly.load import assemble, find_files
from vlmkit.assembly.sources import name_of, runner_of_scheme
from vlmkit.cli.loading import Stages
from vlmkit.config import Config
from vlmkit.config.providers import names_of
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.request_field import FieldFacts
from vlmkit.kit import weight_files
from vlmkit.kit.safetensors_header import weights_of
from vlmkit.plugins.kinds import Kind
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.prompting.request_fields import facts_of
from vlmkit_server.fleet.model_spec import ModelSpec
from vlmkit_server.interfaces.api import Api
from vlmkit_server.interfaces.kinds import API, MONITOR, TOOL_SOURCE
from vlmkit_server.interfaces.monitor import Monitor
from vlmkit_server.interfaces.tool_source import ToolSource
from vlmkit_server.settings.server import ServerSettings

T = TypeVar("T")


def apis(config: Config, plugins: Plugins) -> dict[str, Api]:
    """Build the APIs that a config uses, by name."""
    return _of_server(API, config, plugins)


def tool_sources(config: Config, plugins: Plugins) -> dict[str, ToolSource]:
    """Build the tool sources that a config uses, by name."""
    return _of_server(TOOL_SOURCE, config, plugins)


def monitors(config: Config, plugins: Plugins) -> dict[str, Monitor]:
    """Build the monitors that a config uses, by name."""
    return _of_server(MONITOR, config, plugins)


def request_fields(plugins: Plugins) -> dict[str, tuple[FieldFacts, ...]]:
    """Return every field that installed plugins add to requests, for any model."""
    found: dict[str, tuple[FieldFacts, ...]] = {}
    for kind in plugins.kinds:
        for provider in plugins.of(kind):
            for field in provider.request_fields:
                facts, known = facts_of(field), found.get(field.name, ())
                if facts not in known:
                    found[field.name] = (*known, facts)
    return found


def _of_server(kind: Kind[T], config: Config, plugins: Plugins) -> dict[str, T]:
    registry, group = plugins.of(kind), config.group(kind.section)
    context, given = BuildContext(registries=plugins.by_kind), group.settings
    found = names_of(group, registry, None)
    return {name: registry.build(name, given.get(name, {}), context) for name in found}


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
    """Return how one model is served; each stage of its loading writes a line to standard error.

    With a JSON log, there is one log line for each load instead.

    Args:
        entry: the model.
        config: how it is built.
        plugins: the installed plugins.
        monitors: provide observers of its requests, each by its name.
    """
    observers = observers_of(monitors, name_of(entry))
    settings = config.table("server", ServerSettings)
    workers = settings.worker_processes

    def load() -> "Runner":
        stages = None
        if settings.log_format == "json":
            log.info("loading %r", name_of(entry))
        else:
            click.echo(f"loading {name_of(entry)!r}", err=True)
            stages = Stages(lists=True)
        return assemble(entry, config, plugins, stages, observers, workers)

    def weigh() -> int:
        if runner_of_scheme(entry.model, plugins) is not None:
            return 0  # it is in the memory of another server
        return weight_bytes(find_files(entry, config, plugins))

    return ModelSpec(
        load=load,
        aliases=entry.alias_names,
        alias_fields=entry.alias_fields,
        when=entry.load,
        idle_unload_s=entry.idle_unload_s,
        memory_bytes=entry.memory_bytes,
        on_engine_failure=entry.on_engine_failure,
        weigh=weigh,
    )


def observers_of(
    monitors: Mapping[str, Monitor], model: str
) -> dict[str, Callable[[], Observer | None]]:
    """Return what makes the observers of a model's requests, for each monitor by its name."""
    return {
        f"monitors.{name}": partial(monitor.observer, model) for name, monitor in monitors.items()
    }


def weight_bytes(checkpoint: "Checkpoint") -> int:
    """Return the size of a model's weight files, or of its graphs, where these are larger."""
    if own := weight_files.files_of_one(checkpoint):
        return sum(file.stat().st_size for file in own)
    graphs = [*checkpoint.path.glob("*.onnx"), *checkpoint.path.glob("*.onnx.data")]
    return max(weights_of(checkpoint).num_bytes, sum(path.stat().st_size for path in graphs))
