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
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vlmkit.assembly.sources import Check, name_of, reference_of, resolve, wrong_type
from vlmkit.checkpoints.generation_config import default_params
from vlmkit.config import COMPONENTS, GROUPS, Component, Config, ModelEntry, read_layers
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.config.providers import (
    build_group,
    check_groups,
    component_names_of,
    is_left_out,
    registry_of,
    with_broken_plugins,
    with_provider_paths,
)
from vlmkit.config.renderer_plan import WorkerProcesses, renderers
from vlmkit.config.structs import SECTIONS
from vlmkit.errors import (
    CheckpointError,
    ConfigError,
    PluginError,
    PluginUnavailable,
    RequestError,
    VlmkitError,
)
from vlmkit.interfaces.constraint import Vocabulary
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.request_field import RequestField
from vlmkit.kit import heap, weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.kinds import OBSERVER, TOKENIZER
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext, Provider, Registry, ignore_progress
from vlmkit.running.prompting.request_fields import checked_fields

if TYPE_CHECKING:
    from vlmkit.interfaces.observer import Observer
    from vlmkit.interfaces.runner import Runner
    from vlmkit.model import Model
    from vlmkit.running.constraints.sandbox.worker import ConstraintWorker

log = logging.getLogger(__name__)

MakeObserver = Callable[[], "Observer | None"]
OnStage = Callable[[str], None]
"""Called with the name of each stage of loading when it begins; the last one is ``ready``."""


def load(
    model: str | os.PathLike[str],
    *,
    config: Config | str | os.PathLike[str] | None = None,
    revision: str | None = None,
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
    entry = ModelEntry(model=reference_of(model), revision=revision)
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
    return resolve(reference_of(model), plugins, revision or config.revision, check=check)


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
    return resolve(entry.model, plugins, entry.revision, check=check, is_update=is_update)


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


def examination_errors(
    entry: ModelEntry,
    choice: Mapping[str, tuple[str, dict[str, Any]]],
    plugins: Plugins,
    checkpoint: Checkpoint,
) -> Iterator[VlmkitError]:
    """Yield why chosen providers cannot serve a model, as far as they know without its weights."""
    context = BuildContext(
        entry.model,
        checkpoint,
        revision=entry.revision,
        registries=plugins.by_kind,
        components=choice,
    )
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
    report("model files")
    checkpoint = find_files(entry, config, plugins)
    choice = choose(entry, config, plugins, checkpoint)
    fields = request_fields(choice, plugins)
    check_alias_fields(entry, fields)
    check_groups(config, plugins)
    context = BuildContext(
        entry.model,
        checkpoint,
        revision=entry.revision,
        on_stage=report,
        registries=plugins.by_kind,
        components=choice,
    )
    parts: dict[str, Any] = {}
    with ExitStack() as built:
        for section, (name, settings) in choice.items():
            if SECTIONS[section].is_late:
                parts[section] = _deferred(registry_of(plugins, section), name, settings, context)
                continue
            report(section.replace("_", " "))
            parts[section] = registry_of(plugins, section).build(name, settings, context)
            if section == TOKENIZER.section:
                context = replace(context, text_side=parts[section])
            if close := getattr(parts[section], "close", None):
                built.callback(close)
        for section in GROUPS:
            registry, group = registry_of(plugins, section), config.group(section)
            parts[section] = build_group(registry, group, context, built)
        component_names = component_names_of(plugins, choice, parts)
        for name, make in observers.items():
            if (observer := make()) is not None:
                parts[OBSERVER.section][name] = observer
                built.callback(observer.close)
        _check_vision(parts, choice, context)
        tokenizer = choice["tokenizer"]
        pool = renderers(workers, parts, tokenizer, config, context, name_of(entry))
        parts["renderers"] = built.enter_context(pool) if pool else None
        parts["constraint_worker"] = _constraint_worker(choice, config, context, workers)
        from vlmkit.checkpoints.pooling import (
            read_pooling,  # commands without a model must not import NumPy
        )
        from vlmkit.running.pipeline.pipeline import Pipeline

        runner = Pipeline(
            **parts,
            request_fields=fields,
            name=name_of(entry),
            defaults=default_params(checkpoint),
            settings=config.pipeline,
            pooling=partial(read_pooling, checkpoint),
            component_names=component_names,
        )
        built.pop_all()  # from now on the runner closes them
        built.callback(runner.close)
        if workers is not None and "constraint" in parts:
            report("constraint")
            runner.prepare()
        built.pop_all()
    heap.trim()
    report("ready")
    return runner


def _constraint_worker(
    choice: Mapping[str, tuple[str, dict[str, Any]]],
    config: Config,
    context: BuildContext,
    workers: WorkerProcesses | None,
) -> "ConstraintWorker | None":
    """Return the worker that tries constraints; None without constraints or without fork."""
    compiler = choice.get("constraint")
    if compiler is None or workers is None or not workers.compiles_constraints:
        return None
    if not hasattr(os, "fork"):
        log.warning("constraints are compiled in the server's process: this system has no fork")
        return None
    from vlmkit.config.constraint_plan import constraint_worker  # it imports NumPy

    return constraint_worker(compiler, config, context)


def request_fields(
    choice: Mapping[str, tuple[str, dict[str, Any]]], plugins: Plugins
) -> list[RequestField[Any]]:
    """Return the fields that a model's components add to requests.

    Raises:
        PluginError: two components define the same field differently.
    """
    found: dict[str, tuple[RequestField[Any], str]] = {}
    for section, (name, _) in choice.items():
        registry = registry_of(plugins, section)
        provider = registry.get(name)
        who = registry.who(provider)
        for field in provider.request_fields:
            other, owner = found.setdefault(field.name, (field, who))
            if other != field:
                raise PluginError(
                    f"{owner} and {who} both add the field {field.name!r} to requests, with "
                    "different definitions",
                    hint="use one of them with another component",
                )
    return [field for field, _ in found.values()]


def check_alias_fields(entry: ModelEntry, fields: Iterable[RequestField[Any]]) -> None:
    """Check the request fields that aliases of a model set.

    Raises:
        ConfigError: the model does not take a field, or its value is invalid.
    """
    known = {field.name: field for field in fields}
    for alias, values in entry.alias_fields.items():
        try:
            checked_fields(values, known)
        except RequestError as error:
            raise ConfigError(
                f"alias {alias!r} of model {entry.names[0]!r} sets request fields that cannot be "
                f"used: {error}",
                hint="change its fields, or the component that takes them",
            ) from error


def _check_vision(
    parts: Mapping[str, Any], choice: Mapping[str, Any], context: BuildContext
) -> None:
    """Run the engine's self-check with images, if the model takes images."""
    encoder = parts.get("media_encoder")
    if encoder is None:
        return
    from vlmkit.assembly.vision_warm_up import (
        warm_up_vision,  # commands without a model must not import NumPy
    )

    warm_up_vision(
        parts["engine"],
        encoder,
        parts["tokenizer"],
        context.files,
        built_with=[choice[name] for name in ("engine", "media_encoder", "tokenizer")],
        on_stage=context.on_stage,
    )


def _deferred(
    registry: Registry[Any], name: str, settings: Mapping[str, Any], context: BuildContext
) -> Callable[[Vocabulary], Any]:
    """Return a function that builds a component for a vocabulary when it is first needed."""
    return lambda words: registry.build(name, settings, replace(context, vocabulary=words))


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
        if is_needless(section, component, plugins, checkpoint):
            continue
        try:
            provider = chosen(section, config, plugins, checkpoint, entry)
        except PluginError as error:
            raise _explained(error, checkpoint, plugins) from error
        registry = registry_of(plugins, section)
        registry.check_settings(provider, component.settings)
        choice[section] = (registry.key(provider), component.settings)
    return choice


def _explained(error: PluginError, checkpoint: Checkpoint, plugins: Plugins) -> VlmkitError:
    """Return why a component has no provider; broken weights take precedence over other reasons.

    Broken weights do not matter to an engine that needs none, such as one that runs graphs. A
    folder with only an adapter is broken whatever is installed.
    """
    flaw = weight_files.objection(checkpoint)
    reasons = registry_of(plugins, "engine").objections(checkpoint).values()
    is_reason = flaw in reasons or checkpoint.has("adapter_config.json")
    is_flawed = is_reason and None not in reasons
    if flaw is None or not is_flawed or not isinstance(error, PluginUnavailable):
        return with_broken_plugins(error, plugins)
    return CheckpointError(f"model {checkpoint.name!r} cannot be loaded: {flaw}", hint=flaw.hint)


def chosen(
    section: str,
    config: Config,
    plugins: Plugins,
    checkpoint: Checkpoint,
    entry: ModelEntry | None = None,
) -> Provider[Any]:
    """Return the provider of a component of a model.

    For ``auto``, the media encoder of the chosen engine is preferred, if there is one.

    Raises:
        PluginError: no provider can serve the model, or the configured one cannot.
    """
    use = config.component(section, entry).use
    if section == "media_encoder" and use == "auto":
        encoder = encoder_of_engine(config, plugins, checkpoint, entry)
        if encoder is not None:
            return encoder
    return registry_of(plugins, section).choose(use, checkpoint)


def encoder_of_engine(
    config: Config, plugins: Plugins, checkpoint: Checkpoint, entry: ModelEntry | None = None
) -> Provider[MediaEncoder] | None:
    """Return the encoder with the name and plugin of the chosen engine, if it can serve the model.

    The two belong together: they can share what they load, on the same device.
    """
    try:
        engine = chosen("engine", config, plugins, checkpoint, entry)
    except PluginError:
        return None
    names = (engine.name, engine.plugin)
    encoder = next((p for p in plugins.media_encoders if (p.name, p.plugin) == names), None)
    is_able = encoder is not None and not encoder.objection(checkpoint, is_named=True)
    return encoder if is_able else None


def is_needless(
    section: str, component: Component, plugins: Plugins, checkpoint: Checkpoint
) -> bool:
    """Return whether ``auto`` means that the model does without a component."""
    if component.use != "auto":
        return False
    if section == "media_encoder":
        return not sees(checkpoint, plugins)
    objections = registry_of(plugins, section).objections(checkpoint)
    return SECTIONS[section].is_late and None not in objections.values()


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
