"""Loads a model: from its name and a config to a running model.

The registries choose a provider for each component. Every setting is checked before anything costly
is built. If a component fails, those built before it are closed.
"""

import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vlmkit.assembly.pipelines import (
    MakeObserver,
    PipelineBuilder,
    check_alias_fields,
    request_fields,
)
from vlmkit.assembly.runners import build_remote, build_wrapper, runner_context
from vlmkit.assembly.sources import (
    Check,
    reference_of,
    resolve,
    runner_of_scheme,
    wrong_type,
)
from vlmkit.config import COMPONENTS, Component, Config, ModelEntry, read_layers
from vlmkit.config.pipeline_plan import PipelinePlan
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.config.providers import (
    check_groups,
    is_left_out,
    registry_of,
    with_broken_plugins,
    with_provider_paths,
)
from vlmkit.config.renderer_plan import WorkerProcesses
from vlmkit.config.structs import SECTIONS
from vlmkit.errors import (
    CheckpointError,
    ConfigError,
    PluginError,
    PluginUnavailable,
    VlmkitError,
)
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.kit import heap, weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.kinds import MEDIA_ENCODER, RUNNER
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext, OtherModel, Provider, ignore_progress

if TYPE_CHECKING:
    from vlmkit.interfaces.runner import Runner
    from vlmkit.model import Model

log = logging.getLogger(__name__)

PARTNERS = ("media_encoder", "tokenizer")
"""The sections whose ``auto`` prefers the provider with the name and plugin of the engine."""

OnStage = Callable[[str], None]
"""Called with the name of each stage of loading when it begins; the last one is ``ready``."""


def load(
    model: str | os.PathLike[str],
    *,
    config: Config | str | os.PathLike[str] | None = None,
    revision: str | None = None,
    projector: str | None = None,
    on_stage: OnStage | None = None,
    **sections: Mapping[str, Any],
) -> "Model":
    """Load a model and return it running; close it, or use it in a ``with`` statement.

    Args:
        model: a packaged name such as ``demo``, a folder, a hub id, or a URI that a plugin
            supports.
        config: a :class:`vlmkit.config.Config`, or the path of a TOML file. With a path or None,
            ``VLMKIT_`` variables apply, too.
        revision: the revision to download from the hub.
        projector: the name of the file with the vision tower, of several beside a GGUF file.
        on_stage: called with the name of each stage of loading when it begins. When None, a
            notebook shows the stages.
        **sections: sections of the config, such as ``engine={"use": "torch"}``, which override the
            rest.

    Raises:
        ConfigError: a setting is unknown or its value is invalid.
        PluginError: no plugin can serve the model, or the configured plugin is broken.
        CheckpointError: the model cannot be found, or its files are broken.
    """
    if on_stage is not None and not callable(on_stage):
        raise wrong_type("on_stage", on_stage, "a function", "print")
    if isinstance(config, Config):
        layers = read_layers(environ={}, base=config, arguments=sections)
    elif isinstance(config, Mapping):
        raise ConfigError(
            "config is the path of a TOML file or a Config, and was a mapping",
            hint='give sections by their names: load(model, sampler={"use": "top-a"})',
        )
    else:
        if not isinstance(config, str | os.PathLike | None):
            raise wrong_type(
                "config", config, "the path of a TOML file or a Config", '"vlmkit.toml"'
            )
        file = None if config is None else Path(config)
        layers = read_layers(file, arguments=sections)
    entry = ModelEntry(model=reference_of(model), revision=revision, projector=projector)
    plugins = load_plugins(layers.plugins())
    config = with_provider_paths(layers.read(plugins.tables), plugins).config
    runner = assemble(entry, config, plugins, on_stage or notebook_progress())
    from vlmkit.inputs.images import fetcher_of
    from vlmkit.model import Model  # commands without a model must not import NumPy

    return Model(runner, fetcher_of(config.fetch))


def fetch(
    model: str | os.PathLike[str], *, revision: str | None = None, check: Check | None = None
) -> Checkpoint:
    """Return the files of a model as :func:`load` finds them; build nothing.

    Downloads a model from a hub. ``VLMKIT_`` variables apply.

    Args:
        model: as for :func:`load`.
        revision: the revision to download from the hub.
        check: called with previews of the model before its weights are downloaded. An error that it
            raises stops the download. It is not called for a model on this disk.

    Raises:
        ConfigError: a setting is unknown or its value is invalid.
        CheckpointError: the model cannot be found, or its files are broken.
    """
    layers = read_layers()
    plugins = load_plugins(layers.plugins())
    config = layers.read(plugins.tables).config
    return resolve(
        reference_of(model),
        plugins,
        revision or config.revision,
        projector=config.projector,
        check=check,
    )


def find_files(
    entry: ModelEntry, config: Config, plugins: Plugins, *, is_update: bool = False
) -> Checkpoint:
    """Return the files of a model; download weights only if the model can be loaded here.

    Raises:
        CheckpointError: the model cannot be found, or its files are broken.
        ConfigError: a setting is unknown or out of range.
        PluginError: a component has no provider that can serve the model here.
    """
    check = partial(refuse_unservable, entry, config, plugins)
    return resolve(
        entry.model,
        plugins,
        entry.revision,
        projector=entry.projector,
        check=check,
        is_update=is_update,
    )


def refuse_unservable(
    entry: ModelEntry, config: Config, plugins: Plugins, checkpoint: Checkpoint
) -> None:
    """Check that a model can be loaded here, as far as possible without its weights.

    Raises:
        VlmkitError: the model cannot be loaded; as for :func:`find_files`.
    """
    choice = choose(entry, config, plugins, checkpoint)
    for error in examination_errors(entry, choice, plugins, checkpoint):
        raise error


def build_context(
    entry: ModelEntry,
    choice: Mapping[str, tuple[str, dict[str, Any]]],
    plugins: Plugins,
    checkpoint: Checkpoint,
) -> BuildContext:
    """Return what providers get that examine a model, or plan its memory, without its weights."""
    return BuildContext(
        entry.model,
        checkpoint,
        revision=entry.revision,
        registries=plugins.by_kind,
        components=choice,
    )


def examination_errors(
    entry: ModelEntry,
    choice: Mapping[str, tuple[str, dict[str, Any]]],
    plugins: Plugins,
    checkpoint: Checkpoint,
) -> Iterator[VlmkitError]:
    """Yield why chosen providers cannot serve a model, as far as they know without its weights."""
    context = build_context(entry, choice, plugins, checkpoint)
    try:
        check_alias_fields(entry, request_fields(choice, plugins))
    except VlmkitError as error:
        yield error
    for section, (name, settings) in choice.items():
        try:
            registry_of(plugins, section).examine(name, settings, context)
        except VlmkitError as error:
            yield error


def assemble(
    entry: ModelEntry,
    config: Config,
    plugins: Plugins,
    on_stage: OnStage | None = None,
    observers: "Mapping[str, MakeObserver]" = MappingProxyType({}),
    workers: WorkerProcesses | None = None,
) -> "Runner":
    """Build the runner of a model; errors as for :func:`load`.

    Args:
        entry: the model.
        config: the settings.
        plugins: the plugins that provide the components.
        on_stage: called with the name of each stage when it begins.
        observers: functions that create further observers, by name.
        workers: the worker processes of a served model; None for other models. Late components of a
            served model are built now, because all requests would wait for them later.
    """
    report = on_stage or ignore_progress
    owner = runner_of_scheme(entry.model, plugins)
    if owner is not None:
        runner: Runner = build_remote(owner, entry, config, plugins, report, observers)
    else:
        report("model files")
        checkpoint = find_files(entry, config, plugins)
        choice = choose(entry, config, plugins, checkpoint)
        check_groups(config, plugins)
        wrapper = choice.pop(RUNNER.section, None)
        pipelines = PipelineBuilder(
            *(entry, config, plugins, checkpoint, choice, report, observers, workers),
            make_other=partial(_make_other, plugins, report),
        )
        if wrapper is None:
            runner = pipelines.build()
        else:
            context = runner_context(entry, config, plugins, report, observers)
            context = replace(context, checkpoint=checkpoint, components=choice)
            runner = build_wrapper(*wrapper, plugins, context, pipelines)
    heap.trim()
    report("ready")
    return runner


def assemble_encoder(
    entry: ModelEntry, config: Config, plugins: Plugins, on_stage: OnStage | None = None
) -> MediaEncoder:
    """Build the media encoder of a model as its pipeline would have it, and nothing else.

    The caller closes it.

    Raises:
        ConfigError: the model has no media encoder.
        VlmkitError: as for :func:`load`.
    """
    report = on_stage or ignore_progress
    report("model files")
    checkpoint = find_files(entry, config, plugins)
    choice = choose(entry, config, plugins, checkpoint)
    choice.pop(RUNNER.section, None)
    if "media_encoder" not in choice:
        raise ConfigError(f"model {checkpoint.name!r} has no media encoder here")
    name, settings = choice["media_encoder"]
    context = replace(build_context(entry, choice, plugins, checkpoint), on_stage=report)
    report("media encoder")
    return plugins.of(MEDIA_ENCODER).build(name, settings, context)


def build_plan(
    plan: bytes,
    on_stage: OnStage | None = None,
    observers: Mapping[str, MakeObserver] | None = None,
) -> "Runner":
    """Build a pipeline in this process by the plan that another process made.

    Args:
        plan: the result of :meth:`vlmkit.plugins.build_context.Pipelines.plan`.
        on_stage: called with the name of each stage when it begins.
        observers: functions that create observers of this process, by name.

    Raises:
        VlmkitError: a component cannot be built; as for :func:`load`.
        msgspec.DecodeError: the plan is not one.
    """
    decoded = PipelinePlan.from_bytes(plan)
    entry, config, checkpoint = decoded.entry, decoded.config, decoded.files.checkpoint
    plugins = load_plugins(config.plugins)
    choice = choose(entry, config, plugins, checkpoint)
    choice.pop(RUNNER.section, None)
    report = on_stage or ignore_progress
    return PipelineBuilder(
        *(entry, config, plugins, checkpoint, choice, report, observers or {}, decoded.workers),
        make_other=partial(_make_other, plugins, report),
    ).build()


def _make_other(
    plugins: Plugins,
    on_stage: OnStage,
    reference: str,
    use: str,
    settings: Mapping[str, Any],
    revision: str | None,
) -> OtherModel:
    """Build the tokenizer and the engine of a further model; see ``BuildContext.build_other``.

    Args:
        plugins: the plugins of the pipeline.
        on_stage: called with the name of each stage.
        reference: the model.
        use: the provider of its engine.
        settings: the settings of its engine.
        revision: the revision to download from the hub.
    """
    entry = ModelEntry(model=reference, revision=revision)
    sections: dict[str, Any] = {"engine": Component(use=use, settings=dict(settings))}
    config = Config(**sections)
    checkpoint = find_files(entry, config, plugins)
    choice = choose(entry, config, plugins, checkpoint, ("tokenizer", "engine"))
    context = BuildContext(
        reference,
        checkpoint,
        revision=revision,
        on_stage=on_stage,
        registries=plugins.by_kind,
        components=choice,
    )
    tokenizer = registry_of(plugins, "tokenizer").build(*choice["tokenizer"], context)
    context = replace(context, text_side=tokenizer)
    engine = registry_of(plugins, "engine").build(*choice["engine"], context)
    return OtherModel(checkpoint, tokenizer, engine)


def choose(
    entry: ModelEntry,
    config: Config,
    plugins: Plugins,
    checkpoint: Checkpoint,
    sections: Iterable[str] = COMPONENTS,
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the name and settings of the provider of each component that the model needs.

    Builds nothing, so an invalid setting of the last component is found before the first is loaded.
    Considers only the given ``sections``.

    Raises:
        ConfigError: a setting is unknown or out of range.
        PluginError: a component has no provider that can serve the model here.
    """
    choice = {}
    for section in sections:
        component = config.component(section, entry)
        if is_left_out(section, component):
            continue
        if is_needless(section, component, plugins, checkpoint, config, entry):
            continue
        try:
            provider = chosen(section, config, plugins, checkpoint, entry)
        except PluginError as error:
            is_found = component.use != "auto" and isinstance(error, PluginUnavailable)
            raise _explained(error, checkpoint, plugins, is_found=is_found) from error
        registry = registry_of(plugins, section)
        registry.check_settings(provider, component.settings)
        choice[section] = (registry.key(provider), component.settings)
    return choice


def _explained(
    error: PluginError, checkpoint: Checkpoint, plugins: Plugins, *, is_found: bool
) -> VlmkitError:
    """Return why a component has no provider; broken weights take precedence over other reasons.

    Broken weights do not matter to an engine that needs none, such as one that runs graphs. A GGUF
    file is no flaw for an engine that reads it, whose own reason says more. A folder with only an
    adapter is broken whatever is installed. Where the named provider was found, plugins that could
    not be loaded have nothing to do with the error.
    """
    unavailable = error if is_found else with_broken_plugins(error, plugins)
    if weight_files.gguf_file(checkpoint) is not None:
        return unavailable
    flaw = weight_files.objection(checkpoint)
    reasons = registry_of(plugins, "engine").objections(checkpoint).values()
    is_reason = flaw in reasons or checkpoint.has("adapter_config.json")
    is_flawed = is_reason and None not in reasons
    if flaw is None or not is_flawed or not isinstance(error, PluginUnavailable):
        return unavailable
    return CheckpointError(f"model {checkpoint.name!r} cannot be loaded: {flaw}", hint=flaw.hint)


def chosen(
    section: str,
    config: Config,
    plugins: Plugins,
    checkpoint: Checkpoint,
    entry: ModelEntry | None = None,
) -> Provider[Any]:
    """Return the provider of a component of a model.

    For ``auto``, the media encoder and the tokenizer of the chosen engine are preferred, if there
    are any, and the runner that it names.

    Raises:
        PluginError: no provider can serve the model, or the configured one cannot.
    """
    use = config.component(section, entry).use
    if section in PARTNERS and use == "auto":
        partner = partner_of_engine(section, config, plugins, checkpoint, entry)
        if partner is not None:
            return partner
    if use == "auto" and (named := named_by_engine(section, config, plugins, checkpoint, entry)):
        return registry_of(plugins, section).choose(named, checkpoint)
    return registry_of(plugins, section).choose(use, checkpoint)


def partner_of_engine(
    section: str,
    config: Config,
    plugins: Plugins,
    checkpoint: Checkpoint,
    entry: ModelEntry | None = None,
) -> Provider[Any] | None:
    """Return the provider with the name and plugin of the chosen engine, if it can serve the model.

    The two belong together: they can share what they load, on the same device.

    Args:
        section: one of ``PARTNERS``.
        config: the settings.
        plugins: provide the components.
        checkpoint: the model.
        entry: its entry in the config.
    """
    try:
        engine = chosen("engine", config, plugins, checkpoint, entry)
    except PluginError:
        return None
    names = (engine.name, engine.plugin)
    registry = registry_of(plugins, section)
    partner = next((each for each in registry if (each.name, each.plugin) == names), None)
    is_able = partner is not None and not partner.objection(checkpoint, is_named=True)
    return partner if is_able else None


def named_by_engine(
    section: str,
    config: Config,
    plugins: Plugins,
    checkpoint: Checkpoint,
    entry: ModelEntry | None = None,
) -> str:
    """Return the name of the provider that the chosen engine names; empty if it names none."""
    if not SECTIONS[section].is_named_by_engine:
        return ""
    with suppress(PluginError):  # an absent engine is an error of its own section
        return chosen("engine", config, plugins, checkpoint, entry).runner
    return ""


def is_needless(
    section: str,
    component: Component,
    plugins: Plugins,
    checkpoint: Checkpoint,
    config: Config,
    entry: ModelEntry | None = None,
) -> bool:
    """Return whether ``auto`` means that the model does without a component."""
    if component.use != "auto":
        return False
    if named_by_engine(section, config, plugins, checkpoint, entry):
        return False
    if section == "media_encoder":
        return not sees(checkpoint, plugins)
    objections = registry_of(plugins, section).objections(checkpoint)
    return SECTIONS[section].is_optional and None not in objections.values()


def sees(checkpoint: Checkpoint, plugins: Plugins) -> bool:
    """Return whether a model has a media encoder, by its config or by a provider."""
    if "vision_config" in checkpoint.answering:
        return True
    return None in plugins.media_encoders.objections(checkpoint).values()


class NotebookProgress:
    """Shows the present stage of loading as one line below a notebook's cell, and finally the time.

    Args:
        display: IPython's ``display``, whose output can be updated.
    """

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None
        self._began_s = time.perf_counter()

    def __call__(self, name: str) -> None:
        """Show that a stage begins."""
        passed_s = time.perf_counter() - self._began_s
        text = f"ready after {passed_s:.1f} s" if name == "ready" else f"loading {name} ..."
        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def notebook_progress() -> NotebookProgress | None:
    """Return a progress display for the notebook that runs this; None outside a notebook."""
    ipython = sys.modules.get("IPython")  # not imported here: a notebook has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    if not hasattr(shell, "kernel"):  # the shell of a terminal has no kernel
        return None
    return NotebookProgress(importlib.import_module("IPython.display").display)
