"""Builds pipelines of one model from the components that the config chose.

Most models have one pipeline. A runner that wraps pipelines builds as many as it needs.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vlmkit.assembly.sources import name_of
from vlmkit.checkpoints.generation_config import default_params
from vlmkit.config import GROUPS, Config, ModelEntry
from vlmkit.config.pipeline_plan import pipeline_plan
from vlmkit.config.providers import build_group, component_names_of, registry_of
from vlmkit.config.renderer_plan import WorkerProcesses, renderers
from vlmkit.config.structs import SECTIONS
from vlmkit.errors import ConfigError, PluginError, RequestError
from vlmkit.interfaces.constraint import Vocabulary
from vlmkit.interfaces.request_field import RequestField
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.build_context import BuildsOther
from vlmkit.plugins.kinds import OBSERVER, TOKENIZER
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext, OtherModel, Registry
from vlmkit.running.prompting.request_fields import checked_fields

if TYPE_CHECKING:
    from vlmkit.interfaces.observer import Observer
    from vlmkit.running.constraints.sandbox.worker import ConstraintWorker
    from vlmkit.running.pipeline.pipeline import Pipeline

log = logging.getLogger(__name__)

Choice = Mapping[str, tuple[str, dict[str, Any]]]
"""The name and the settings of the provider of each component, by section."""
MakeObserver = Callable[[], "Observer | None"]


class PipelineBuilder:
    """Builds pipelines of one model; they share no component.

    Args:
        entry: the model.
        config: the settings.
        plugins: the plugins that provide the components.
        checkpoint: the files of the model.
        choice: the provider and the settings of each component.
        on_stage: called with the name of each stage when it begins.
        observers: functions that create further observers, by name.
        workers: the worker processes of a served model; None for other models.
        make_other: builds further models that components need.

    Attributes:
        built: the pipelines, in the order in which they were built.

    Raises:
        PluginError: two components define the same field of requests differently.
        ConfigError: an alias sets a field that no component takes, or an invalid value.
    """

    def __init__(
        self,
        entry: ModelEntry,
        config: Config,
        plugins: Plugins,
        checkpoint: Checkpoint,
        choice: Choice,
        on_stage: Callable[[str], None],
        observers: Mapping[str, MakeObserver],
        workers: WorkerProcesses | None,
        make_other: BuildsOther,
    ) -> None:
        self._entry = entry
        self._config = config
        self._plugins = plugins
        self._checkpoint = checkpoint
        self._choice = choice
        self._report = on_stage
        self._observers = observers
        self._workers = workers
        self._make_other = make_other
        self._fields = request_fields(choice, plugins)
        check_alias_fields(entry, self._fields)
        self.built: list[Pipeline] = []

    def build(self) -> "Pipeline":
        """Build a pipeline in this process; if a component fails, close those built before it.

        Raises:
            VlmkitError: a component cannot be built.
        """
        other_models = ExitStack()
        context = BuildContext(
            self._entry.model,
            self._checkpoint,
            revision=self._entry.revision,
            on_stage=self._report,
            registries=self._plugins.by_kind,
            components=self._choice,
            bounds=self._config.pipeline,
            builds_other=partial(self._build_other, other_models),
        )
        with ExitStack() as built:
            built.callback(other_models.close)
            parts = self._parts(context, built)
            from vlmkit.checkpoints.pooling import (
                read_pooling,  # commands without a model must not import NumPy
            )
            from vlmkit.running.pipeline.pipeline import Pipeline

            pipeline = Pipeline(
                **parts,
                request_fields=self._fields,
                name=name_of(self._entry),
                defaults=default_params(self._checkpoint),
                settings=self._config.pipeline,
                pooling=partial(read_pooling, self._checkpoint),
                other_models=other_models,
            )
            built.pop_all()  # from now on the pipeline closes them
            built.callback(pipeline.close)
            if self._workers is not None and "constraint" in parts:
                self._report("constraint")
                pipeline.prepare()
            built.pop_all()
        self.built.append(pipeline)
        return pipeline

    def plan(self) -> bytes:
        """Return what another process needs to build the same pipeline."""
        plan = pipeline_plan(self._entry, self._config, self._checkpoint, self._workers)
        return plan.to_bytes()

    def _build_other(
        self,
        other_models: ExitStack,
        reference: str,
        use: str,
        settings: Mapping[str, Any],
        revision: str | None,
    ) -> OtherModel:
        """Build a further model, whose engine the stack closes."""
        other = self._make_other(reference, use, settings, revision)
        other_models.callback(other.engine.close)
        return other

    def _parts(self, context: BuildContext, built: ExitStack) -> dict[str, Any]:
        """Build all components, and register their ``close`` with the stack."""
        choice, plugins, config = self._choice, self._plugins, self._config
        parts: dict[str, Any] = {}
        for section, (name, settings) in choice.items():
            if SECTIONS[section].is_late:
                parts[section] = _deferred(registry_of(plugins, section), name, settings, context)
                continue
            self._report(section.replace("_", " "))
            parts[section] = registry_of(plugins, section).build(name, settings, context)
            if section == TOKENIZER.section:
                context = replace(context, text_side=parts[section])
            if close := getattr(parts[section], "close", None):
                built.callback(close)
        for section in GROUPS:
            registry, group = registry_of(plugins, section), config.group(section)
            parts[section] = build_group(registry, group, context, built)
        parts["component_names"] = component_names_of(plugins, choice, parts)
        for name, make in self._observers.items():
            if (observer := make()) is not None:
                parts[OBSERVER.section][name] = observer
                built.callback(observer.close)
        _check_vision(parts, choice, context)
        tokenizer = choice["tokenizer"]
        pool = renderers(self._workers, parts, tokenizer, config, context, name_of(self._entry))
        parts["renderers"] = built.enter_context(pool) if pool else None
        parts["constraint_worker"] = constraint_worker_of(choice, config, context, self._workers)
        return parts


def constraint_worker_of(
    choice: Choice,
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


def request_fields(choice: Choice, plugins: Plugins) -> list[RequestField[Any]]:
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
