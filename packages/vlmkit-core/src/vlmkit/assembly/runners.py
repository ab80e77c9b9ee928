"""Builds the runners of plugins: those that wrap pipelines, and those that own a URI scheme.

A model whose reference has a scheme of a runner has no files here: its runner answers elsewhere.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlmkit.assembly.pipelines import MakeObserver, PipelineBuilder
from vlmkit.assembly.sources import name_of, without_reference_secrets
from vlmkit.config import COMPONENTS, Config, ModelEntry
from vlmkit.config.providers import is_left_out
from vlmkit.errors import ConfigError, PluginError
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.model_uri import scheme_of, shown
from vlmkit.kit.one_line import named
from vlmkit.plugins.kinds import RUNNER
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.provider import Provider
from vlmkit.plugins.registry import BuildContext, ignore_progress

if TYPE_CHECKING:
    from vlmkit.interfaces.runner import RunnerFacts


def runner_context(
    entry: ModelEntry,
    config: Config,
    plugins: Plugins,
    on_stage: Callable[[str], None],
    observers: Mapping[str, MakeObserver],
) -> BuildContext:
    """Return the build context of a runner, without files and pipelines."""
    return BuildContext(
        entry.model,
        revision=entry.revision,
        on_stage=on_stage,
        registries=plugins.by_kind,
        name=name_of(entry),
        bounds=config.pipeline,
        observers=observers,
    )


def build_remote(
    owner: Provider[Runner],
    entry: ModelEntry,
    config: Config,
    plugins: Plugins,
    on_stage: Callable[[str], None],
    observers: Mapping[str, MakeObserver],
) -> Runner:
    """Build the runner that owns the scheme of a model's reference.

    Raises:
        ConfigError: the config names another runner, or components of a pipeline for this model.
        PluginError: the runner cannot be used here, or what was built is not a working runner.
        VlmkitError: the runner cannot be built.
    """
    settings = remote_settings(owner, entry, config, plugins)
    registry = plugins.of(RUNNER)
    context = runner_context(entry, config, plugins, on_stage, observers)
    on_stage(RUNNER.words)
    with without_reference_secrets(entry.model):
        runner = registry.build(registry.key(owner), settings, context)
        who = registry.who(owner)
        accepted(runner, who)
        unknown = {f for v in entry.alias_fields.values() for f in v} - {
            *runner.facts.request_fields
        }
        if unknown:
            runner.close()
            raise ConfigError(
                f"an alias of model {entry.names[0]!r} sets the request field {min(unknown)!r}, "
                f"which {who} does not take",
                hint="remove it from the alias",
            )
        return runner


def remote_settings(
    owner: Provider[Runner], entry: ModelEntry, config: Config, plugins: Plugins
) -> dict[str, Any]:
    """Return the settings of a runner that owns the scheme of a model's reference.

    Raises:
        ConfigError: the config names another runner, or components of a pipeline for this model.
    """
    registry = plugins.of(RUNNER)
    component = config.component(RUNNER.section, entry)
    is_unnamed = component.use == "auto" or is_left_out(RUNNER.section, component)
    if not is_unnamed and registry.get(component.use) != owner:
        raise ConfigError(
            f"runner.use = {component.use!r}, but {registry.who(owner)} owns the references that "
            f"begin with '{scheme_of(entry.model)}://'",
            hint=f'set use = "{registry.key(owner)}" in [runner], or in the runner of this model',
        )
    for section in COMPONENTS:
        if section != RUNNER.section and getattr(entry, section):
            raise ConfigError(
                f"{section} is set for model {shown(entry.model)!r}, which has no {section} here: "
                f"{registry.who(owner)} answers its requests",
                hint=f"remove {section} from this model",
            )
    return component.settings


def examine_remote(
    owner: Provider[Runner], entry: ModelEntry, config: Config, plugins: Plugins
) -> str:
    """Return how the owner of a scheme would answer for a model; empty if it does not say.

    Raises:
        VlmkitError: an error that :func:`build_remote` would raise, as far as the runner knows
            without being built.
    """
    settings = remote_settings(owner, entry, config, plugins)
    registry = plugins.of(RUNNER)
    context = runner_context(entry, config, plugins, ignore_progress, {})
    with without_reference_secrets(entry.model):
        return registry.examine(registry.key(owner), settings, context)


def build_wrapper(
    name: str,
    settings: Mapping[str, Any],
    plugins: Plugins,
    context: BuildContext,
    pipelines: PipelineBuilder,
) -> Runner:
    """Build a runner that may wrap pipelines; if it fails, close the pipelines that it built.

    Raises:
        PluginError: what was built is not a working runner.
        VlmkitError: the runner or a pipeline cannot be built.
    """
    registry = plugins.of(RUNNER)
    context.on_stage(RUNNER.words)
    with ExitStack() as built:
        built.callback(_close_all, pipelines)
        runner = registry.build(name, settings, replace(context, pipelines=pipelines))
        accepted(runner, registry.who(registry.get(name)))
        built.pop_all()  # from now on the runner closes them
    return runner


def _close_all(pipelines: PipelineBuilder) -> None:
    for pipeline in pipelines.built:
        pipeline.close()


def accepted(runner: Runner, who: str) -> Runner:
    """Return a runner that was just built, if its facts are constant and it can answer.

    A runner that is refused is closed.

    Args:
        runner: the runner; it matches its protocol.
        who: its provider, for messages.

    Raises:
        PluginError: its facts change, or it is not ready.
    """
    if problem := _problem(runner):
        with suppress(Exception):
            runner.close()
        raise PluginError(f"{who} was built, and {problem}")
    return runner


def _problem(runner: Runner) -> str:
    """Return why a runner cannot be used; empty if it can."""
    try:
        first: RunnerFacts = runner.facts
        if not first.modalities or first.modalities[0] != "text":
            return "its facts do not name 'text' as the first modality"
        if not runner.is_ready:
            return "is not ready: it is closed, or it failed already"
        if runner.facts != first:
            return "its facts change: they must stay the same after build"
    except Exception as error:  # noqa: BLE001 - a component may raise anything
        return f"it failed at once: {named(error)}"
    return ""
