"""What a provider's ``build`` gets: a model, settings, and what its pipeline has already.

Holds values and builds nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, cast

from vlmkit.errors import ConfigError, PluginError
from vlmkit.interfaces.constraint import Vocabulary
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Runner
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.kinds import Kind
from vlmkit.settings.pipeline import PipelineSettings

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Registered(Protocol[T_co]):
    """The providers of a kind, as the plugin that owns the kind uses them.

    It is a :class:`vlmkit.plugins.registry.Registry`, which has further methods.
    """

    def offers(self, name: str) -> bool:
        """Return whether a provider may be meant by a name."""

    def suffixes(self) -> list[str]:
        """Return the suffixes of files that the providers own, sorted."""

    def objections(self, subject: object) -> dict[str, str | None]:
        """Return for every provider why it cannot serve a subject here; None where it can."""

    def able(self, subject: object) -> list[Any]:
        """Return the providers that can serve a subject here, the preferred one first."""

    def key(self, provider: Any) -> str:
        """Return the name that selects a provider, with its distribution if that is needed."""

    def choose(self, name: str, subject: object) -> Any:
        """Return the named provider, or for ``auto`` the preferred one that can serve a subject.

        Raises:
            UnknownPlugin: no plugin provides the name.
            PluginUnavailable: the provider cannot serve; for ``auto``, none can.
        """

    def build(self, name: str, settings: Mapping[str, Any], context: "BuildContext") -> T_co:
        """Choose a provider, check its settings and build the component.

        Raises:
            ConfigError: a setting is unknown or out of range.
            PluginError: the provider failed in a way that it does not explain.
        """

    def examine(self, name: str, settings: Mapping[str, Any], context: "BuildContext") -> str:
        """Return how a provider would run a model; errors as for :meth:`build`. Builds nothing."""

    def plan(
        self, name: str, settings: Mapping[str, Any], context: "BuildContext", load: PlannedLoad
    ) -> MemoryPlan | None:
        """Return the memory that a component would take; None if its provider does not say."""


@dataclass(frozen=True, slots=True)
class KindProviders:
    """The providers of every kind, as a plugin that owns a kind asks for them.

    Attributes:
        registries: all that plugins offer, by the plural of its kind.
    """

    registries: Mapping[str, Registered[Any]] = field(default_factory=dict)

    def __call__(self, kind: Kind[T]) -> Registered[T]:
        """Return what all plugins offer of a kind.

        Raises:
            PluginError: the kind is not one of ``VLMKIT_KINDS`` of a plugin that was loaded.
        """
        if kind.plural not in self.registries:
            raise PluginError(
                f"no plugin that was loaded owns the kind {kind.name!r}",
                hint="name it in VLMKIT_KINDS of the plugin's module",
            )
        return self.registries[kind.plural]


class Pipelines(Protocol):
    """Builds the default pipeline of a model, for runners that wrap one or several.

    Each pipeline has its own engine, and its own observers. A runner closes the pipelines that it
    built; they are also closed if its own ``build`` fails.
    """

    def build(self) -> Runner:
        """Build a pipeline in this process.

        Raises:
            VlmkitError: a component cannot be built.
        """

    def plan(self) -> bytes:
        """Return what another process needs to build the same pipeline.

        :func:`vlmkit.assembly.load.build_plan` builds it there, without the observers of the
        caller, which cannot leave this process. The plan may contain secrets of the config.
        """


@dataclass(frozen=True, slots=True)
class OtherModel:
    """A further model beside that of a pipeline, such as a draft model.

    Attributes:
        checkpoint: its files.
        tokenizer: its text side.
        engine: runs it; the pipeline closes it, after everything that may use it.
    """

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    engine: Engine


class BuildsOther(Protocol):
    """Builds a further model of a pipeline."""

    def __call__(
        self, reference: str, use: str, settings: Mapping[str, Any], revision: str | None
    ) -> OtherModel:
        """Return the model; arguments and errors are those of :meth:`BuildContext.build_other`."""


def ignore_progress(_: str) -> None:
    """Take the name of a stage, and do it in silence."""


@dataclass(frozen=True)
class BuildContext:
    """What a provider's ``build`` gets.

    Attributes:
        reference: what the user called the model: a packaged name, a folder, a hub id, or a URI,
            which may hold a password: show it by :func:`vlmkit.kit.model_uri.shown`.
        checkpoint: the model's files; None for components that need none, and for model sources.
        settings: the config section of this component, as the provider's own struct (or a plain
            mapping where it declared none).
        shared: one dictionary for each pipeline, through which the providers of one distribution
            share what is costly to load; use :meth:`share`.
        revision: for model sources: the revision that the user asked for; None is the newest.
        projector: for model sources: the name of the file with the vision tower that the user asked
            for; None leaves it to the source.
        is_update: for model sources: ask for the newest commit of the revision, also where one is
            on this disk already.
        on_stage: called with a few words about each stage of a long ``build``.
        registries: all that plugins offer, by the plural of its kind; use :meth:`providers`.
        vocabulary: of the model, for compilers of constraints.
        text_side: the model's tokenizer, for what is built after it: all other components.
        components: the provider and the settings of each component of the pipeline, by section,
            such as ``("onnx", {"precision": "fp32"})`` for ``engine``; empty if built alone.
        name: what clients call the model; empty if built alone.
        bounds: limits of one request, from ``[pipeline]``.
        pipelines: for runners: builds default pipelines; None for a model without files, and for
            all other components. :meth:`pipeline` builds one.
        observers: for runners: functions that create the observers that the caller adds to the
            model's own, such as those of a server's monitors, by name. Pipelines have them. A
            runner without a pipeline may create them, report its requests to them, and close them.
        builds_other: builds further models; use :meth:`build_other`.
    """

    reference: str = ""
    checkpoint: Checkpoint | None = None
    settings: Any = None
    shared: dict[Any, Any] = field(default_factory=dict)
    revision: str | None = None
    projector: str | None = None
    is_update: bool = False
    on_stage: Callable[[str], None] = ignore_progress
    registries: Mapping[str, Registered[Any]] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None
    text_side: Tokenizer | None = None
    components: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    name: str = ""
    bounds: PipelineSettings = field(default_factory=PipelineSettings)
    pipelines: Pipelines | None = None
    observers: Mapping[str, Callable[[], Observer | None]] = field(default_factory=dict)
    builds_other: BuildsOther | None = None

    @property
    def files(self) -> Checkpoint:
        """The checkpoint, which must be there."""
        if self.checkpoint is None:
            raise ConfigError("this component needs a model, and none was given")
        return self.checkpoint

    @property
    def words(self) -> Vocabulary:
        """The vocabulary, which must be there."""
        if self.vocabulary is None:
            raise ConfigError("this component needs a vocabulary, and none was given")
        return self.vocabulary

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, which must be there."""
        if self.text_side is None:
            raise ConfigError(
                "this component needs a model's tokenizer, and none was given",
                hint="to check it, name a model: vlmkit plugins check NAME MODEL",
            )
        return self.text_side

    def pipeline(self) -> Runner:
        """Build the default pipeline of the model, for a runner that wraps it.

        Raises:
            ConfigError: the model has no files, or this is not the ``build`` of a runner.
            VlmkitError: a component cannot be built.
        """
        if self.pipelines is None:
            raise ConfigError(
                "this runner needs a model whose files are on this machine, and there is none",
                hint="name a model that is a folder, a hub id or a packaged name",
            )
        return self.pipelines.build()

    def share(self, key: object, make: Callable[[], T]) -> T:
        """Return what another component of this pipeline made under ``key``, or make it now."""
        if key not in self.shared:
            self.shared[key] = make()
        return cast("T", self.shared[key])

    def providers(self, kind: Kind[T]) -> Registered[T]:
        """Return what all plugins offer of a kind; meant for the plugin that owns it.

        Raises:
            PluginError: the kind is not one of ``VLMKIT_KINDS`` of a plugin that was loaded.
        """
        return KindProviders(self.registries)(kind)

    def build_other(
        self,
        reference: str,
        *,
        use: str = "auto",
        settings: Mapping[str, Any] = MappingProxyType({}),
        revision: str | None = None,
    ) -> OtherModel:
        """Build the tokenizer and the engine of a second checkpoint, such as a draft model.

        The same plugins are asked as for the pipeline's own model; its settings do not apply. The
        pipeline closes the engine when it closes, or when it cannot be built. A model of a hub is
        downloaded.

        Args:
            reference: the model, as users name one.
            use: the provider of its engine.
            settings: the settings of its engine.
            revision: the revision to download from the hub.

        Raises:
            ConfigError: this component is built without a pipeline, or a setting is invalid.
            CheckpointError: the model cannot be found, or its files are broken.
            PluginError: no plugin can serve the model, or the provider is broken.
        """
        if self.builds_other is None:
            raise ConfigError(
                "this component needs a second model, which only a pipeline can build",
                hint="load a model with the component, by vlmkit.load or a command",
            )
        return self.builds_other(reference, use, settings, revision)
