"""Named providers of one kind of component, and how one of them is built.

A registry is filled by plugins at start-up and asked by the pipeline afterwards. It knows nothing
of pluggy and never imports a plugin.
"""

import difflib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from vlmkit.errors import ConfigError, PluginError, PluginUnavailable, UnknownPlugin, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import hint_of, together
from vlmkit.plugins.kinds import Kind
from vlmkit.plugins.members import is_protocol, lacking, misfitting
from vlmkit.seams.constraint import Vocabulary

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)


def tell_nobody(_: str) -> None:
    """Take the name of a stage, and do it in silence."""


@dataclass(frozen=True)
class BuildContext:
    """What a provider's ``build`` gets.

    Attributes:
        reference: what the user called the model: a packaged name, a folder or a hub id.
        checkpoint: the model's files; None for components that need none, and for model sources.
        settings: the config section of this component, as the provider's own struct (or a plain
            mapping where it declared none).
        shared: one dictionary for each pipeline, through which the providers of one distribution
            share what is costly to load; use :meth:`share`.
        revision: for model sources: the revision that the user asked for; None is the newest.
        on_stage: told what a long ``build`` is doing, a few words at a time.
        registries: all that plugins offer, by the plural of its kind; use :meth:`providers`.
        vocabulary: of the model, for compilers of constraints.
    """

    reference: str = ""
    checkpoint: Checkpoint | None = None
    settings: Any = None
    shared: dict[Any, Any] = field(default_factory=dict)
    revision: str | None = None
    on_stage: Callable[[str], None] = tell_nobody
    registries: Mapping[str, "Registry[Any]"] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None

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

    def share(self, key: object, make: Callable[[], T]) -> T:
        """Return what another component of this pipeline made under ``key``, or make it now."""
        if key not in self.shared:
            self.shared[key] = make()
        return cast("T", self.shared[key])

    def providers(self, kind: Kind[T]) -> "Registry[T]":
        """Return what all plugins offer of a kind; meant for the plugin that owns it.

        Raises:
            PluginError: the kind is not one of ``VLMKIT_KINDS`` of a plugin that was loaded.
        """
        if kind.plural not in self.registries:
            raise PluginError(
                f"no plugin that was loaded owns the kind {kind.name!r}",
                hint="name it in VLMKIT_KINDS of the plugin's module",
            )
        return self.registries[kind.plural]


def _always() -> str | None:
    return None


def _any(_: object) -> str | None:
    return None


def _is_priority(value: object) -> bool:
    return isinstance(value, int) or callable(value)


def _is_function_or_none(value: object) -> bool:
    return value is None or callable(value)


def _is_struct_or_none(value: object) -> bool:
    return value is None or (isinstance(value, type) and issubclass(value, msgspec.Struct))


_EXPECTED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("build", callable, "a function"),
    ("why_not", callable, "a function"),
    ("cannot_serve", callable, "a function"),
    ("examine", _is_function_or_none, "a function"),
    ("keep", _is_function_or_none, "a function"),
    ("list_models", _is_function_or_none, "a function"),
    ("settings", _is_struct_or_none, "a subclass of msgspec.Struct"),
    ("priority", _is_priority, "a whole number or a function"),
    ("description", lambda value: isinstance(value, str), "a text"),
)


@dataclass(frozen=True, slots=True)
class Provider(Generic[T]):
    """One named way to get a component.

    Attributes:
        name: what a config selects it by.
        build: makes the component; may import heavy libraries and take long.
        why_not: says in one sentence why it cannot run on this machine; None when it can.
            Must not import what it asks about.
        cannot_serve: the same for one model: gets the Checkpoint (for model sources: the
            reference) and looks at small files only. Either may return a
            :class:`vlmkit.kit.objection.Objection`, which has a hint.
        settings: struct of the provider's own settings; None accepts no settings.
        priority: ``auto`` prefers higher numbers; those of vlmkit itself have 10, so that a plugin
            takes over only if it says more. A function is asked for each model: it gets what
            ``cannot_serve`` gets.
        description: one line for ``vlmkit plugins --json``.
        examine: says in a few words how it would run a model, or raises what ``build`` would; for
            ``vlmkit doctor``. May import heavy libraries; loads no weights.
        keep: writes what ``build`` finds out of a model where later builds find it: into a folder
            that is being made, or for None into the user's cache folder. Says why it cannot.
        list_models: for sources of many models: the references of those that are on this disk.
        plugin: the distribution or file that offers it; filled in by the loader.
    """

    name: str
    build: Callable[[BuildContext], T]
    why_not: Callable[[], str | None] = _always
    cannot_serve: Callable[[Any], str | None] = _any
    settings: type[msgspec.Struct] | None = None
    priority: int | Callable[[Any], int] = 0
    description: str = ""
    examine: Callable[[BuildContext], str] | None = None
    keep: Callable[[BuildContext, Path | None], str | None] | None = None
    list_models: Callable[[], Iterable[str]] | None = None
    plugin: str = "vlmkit"

    def objection(self, *subject: object) -> str | None:
        """Say why it cannot run here, or cannot serve the subject if one is given.

        A check that raises is an objection too: a broken plugin must not stand in the way of
        the others.
        """
        try:
            return self.why_not() or (self.cannot_serve(*subject) if subject else None) or None
        except Exception as error:
            log.warning("%s: the check of %r failed", self.plugin, self.name, exc_info=error)
            return f"its own check failed with {type(error).__name__}"

    def priority_for(self, subject: object) -> int:
        """Return how much ``auto`` prefers it for the subject; 0 where its function fails."""
        if isinstance(self.priority, int):
            return self.priority
        try:
            priority: object = self.priority(subject)
            if isinstance(priority, int):
                return priority
        except Exception as error:
            log.warning("%s: the priority of %r failed", self.plugin, self.name, exc_info=error)
        else:
            log.warning("%s: the priority of %r is no whole number", self.plugin, self.name)
        return 0


class Registry(Generic[T]):
    """What a ``vlmkit_register_*`` hook receives.

    Args:
        kind: what it holds, for messages.
        plugin: who fills it.
        makes: the protocol or class of what is built; None leaves the check to who asks for it.
        reserved: names that are vlmkit's own.
    """

    def __init__(
        self,
        kind: str,
        plugin: str = "vlmkit",
        *,
        makes: type | None = None,
        reserved: Iterable[str] = (),
    ) -> None:
        self.kind = kind
        self.plugin = plugin
        self._makes = makes
        self._reserved = frozenset(reserved)
        self._providers: dict[str, Provider[T]] = {}

    def __iter__(self) -> Iterator[Provider[T]]:
        """Yield the providers by name."""
        return iter(sorted(self._providers.values(), key=lambda provider: provider.name))

    def add(  # noqa: PLR0913 - one each of what a provider consists of
        self,
        name: str,
        build: Callable[[BuildContext], T],
        *,
        why_not: Callable[[], str | None] = _always,
        cannot_serve: Callable[[Any], str | None] = _any,
        settings: type[msgspec.Struct] | None = None,
        priority: int | Callable[[Any], int] = 0,
        description: str = "",
        examine: Callable[[BuildContext], str] | None = None,
        keep: Callable[[BuildContext, Path | None], str | None] | None = None,
        list_models: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """Offer ``build`` under ``name``; see :class:`Provider` for the rest.

        Raises:
            PluginError: the name is taken or is not a plain word, or an argument is of a kind that
                would break the choice among all providers later on.
        """
        if not name.replace("-", "").replace("_", "").isalnum() or name in ("auto", "none"):
            raise PluginError(
                f"{self.kind} name {name!r} must be letters, digits, '-' or '_'",
                hint="auto and none mean something of their own",
            )
        self._take(
            Provider(
                name=name,
                build=build,
                why_not=why_not,
                cannot_serve=cannot_serve,
                settings=settings,
                priority=priority,
                description=description,
                examine=examine,
                keep=keep,
                list_models=list_models,
                plugin=self.plugin,
            )
        )

    def merge(self, other: "Registry[T]") -> None:
        """Take everything that ``other`` offers, or nothing."""
        for provider in other:
            self._refuse_taken(provider)
        for provider in other:
            self._take(provider)

    def get(self, name: str) -> Provider[T]:
        """Return the provider of this name.

        Raises:
            UnknownPlugin: there is none; the hint names the nearest.
        """
        if (provider := self._providers.get(name)) is not None:
            return provider
        near = difflib.get_close_matches(name, self._providers, n=1)
        installed = ", ".join(sorted(self._providers)) or "none"
        hint = f"did you mean {near[0]!r}?" if near else f"installed: {installed}"
        raise UnknownPlugin(f"no installed plugin provides {self.kind} {name!r}", hint=hint)

    def objections(self, subject: object) -> dict[str, str | None]:
        """Say of every provider why it cannot serve ``subject`` here; None where it can."""
        return {p.name: p.objection(subject) for p in self}

    def able(self, subject: object) -> list[Provider[T]]:
        """Return the providers that can serve ``subject`` here, the preferred one first."""
        able = [provider for provider in self if provider.objection(subject) is None]
        return sorted(able, key=lambda provider: -provider.priority_for(subject))

    def choose(self, name: str, subject: object) -> Provider[T]:
        """Return the named provider, or for ``auto`` the preferred one that can serve.

        Raises:
            UnknownPlugin: no plugin provides the name.
            PluginUnavailable: the provider cannot serve; for ``auto``, none can. The message
                says why of each.
        """
        if name != "auto":
            provider = self.get(name)
            if reason := provider.objection(subject):
                raise PluginUnavailable(
                    f"{self._who(provider)} cannot be used: {reason}", hint=hint_of(reason)
                )
            return provider
        reasons = self.objections(subject)
        able = [p for p in self if reasons[p.name] is None]
        if not able:
            every = together(reasons)
            raise PluginUnavailable(
                f"no installed {self.kind} can serve this model ({every or 'none is installed'})",
                hint=every.hint or "install one: pip install vlmkit-hf vlmkit-torch, for example",
            )
        return max(able, key=lambda provider: provider.priority_for(subject))

    def build(self, name: str, settings: Mapping[str, Any], context: BuildContext) -> T:
        """Choose a provider, check its settings and build the component.

        Raises:
            ConfigError: a setting is unknown or out of range.
            PluginError: the provider's ``build`` failed in a way that it does not explain, or
                returned something other than the component.
        """
        provider = self._chosen(name, context)
        built = self._call(provider, provider.build, settings, context)
        if built is None:
            raise PluginError(
                f"{self._who(provider)} was built as None",
                hint="its build function must return the component",
            )
        self._refuse_other(built, self._who(provider))
        return built

    def examine(self, name: str, settings: Mapping[str, Any], context: BuildContext) -> str:
        """Say how a provider would run a model; empty where it does not say. Builds nothing.

        Raises:
            VlmkitError: what :meth:`build` would raise, as far as that shows without weights.
        """
        provider = self._chosen(name, context)
        if provider.examine is None:
            self.check_settings(provider, settings)
            return ""
        return self._call(provider, provider.examine, settings, context)

    def check_settings(self, provider: Provider[T], settings: Mapping[str, Any]) -> Any:
        """Return the settings as the provider's own struct.

        Raises:
            ConfigError: a setting is unknown or out of range.
        """
        wanted = provider.settings
        if wanted is None:
            if settings:
                raise ConfigError(
                    f"{self.kind} {provider.name!r} has no setting {next(iter(settings))!r}"
                )
            return {}
        known = [f.encode_name for f in msgspec.structs.fields(wanted)]
        for key in settings:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise ConfigError(
                    f"{self.kind} {provider.name!r} has no setting {key!r}", hint=hint
                )
        try:
            return msgspec.convert(dict(settings), wanted, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{self.kind} {provider.name!r}: {error}") from error

    def _chosen(self, name: str, context: BuildContext) -> Provider[T]:
        subject = context.checkpoint if context.checkpoint is not None else context.reference
        return self.choose(name, subject)

    def _call(
        self,
        provider: Provider[T],
        function: Callable[[BuildContext], R],
        settings: Mapping[str, Any],
        context: BuildContext,
    ) -> R:
        """Give a provider's function its checked settings; wrap what it does not explain."""
        checked = self.check_settings(provider, settings)
        try:
            return function(replace(context, settings=checked))
        except VlmkitError:
            raise
        except Exception as error:
            who = self._who(provider)
            log.warning("%s could not be built", who, exc_info=error)
            text = " ".join(str(error).split())  # for the owner of this machine, like the log
            raise PluginError(
                f"{who} could not be built: {type(error).__name__}: {text}",
                hint="the log shows where, as does `vlmkit --debug ...`",
            ) from error

    def _who(self, provider: Provider[T]) -> str:
        return f"{self.kind} {provider.name!r} from {provider.plugin!r}"

    def _refuse_other(self, built: T, who: str) -> None:
        """Refuse what the pipeline could not use, before a request finds it out."""
        if self._makes is None:
            return
        if not is_protocol(self._makes):
            if not isinstance(built, self._makes):
                raise PluginError(
                    f"{who} was built as {type(built).__name__!r}, not as a {self._makes.__name__}"
                )
            return
        problem = ""
        if missing := lacking(built, self._makes):
            problem = f"which lacks {', '.join(map(repr, missing))} of the protocol "
            problem += self._makes.__name__
        elif misfits := list(misfitting(built, self._makes)):
            problem = f"which does not fit the protocol {self._makes.__name__}: "
            problem += "; ".join(misfits)
        if problem:
            raise PluginError(
                f"{who} was built as {type(built).__name__!r}, {problem}",
                hint="vlmkit.seams says what each of its members does",
            )

    def _refuse_malformed(self, new: Provider[T]) -> None:
        for name, is_right, expected in _EXPECTED:
            value = getattr(new, name)
            if not is_right(value):
                raise PluginError(
                    f"{self.kind} {new.name!r} must be given {expected} as {name}, not a value of "
                    f"type {type(value).__name__!r}"
                )

    def _refuse_taken(self, new: Provider[T]) -> None:
        if new.name in self._reserved:
            raise PluginError(
                f"{self.kind} {new.name!r} from {new.plugin!r} has the name of one of vlmkit's own",
                hint="give it another name",
            )
        if (taken := self._providers.get(new.name)) is not None:
            if taken.plugin == new.plugin:
                raise PluginError(
                    f"{self.kind} {new.name!r} is registered twice by {new.plugin!r}",
                    hint="give one of them another name",
                )
            raise PluginError(
                f"{self.kind} {new.name!r} from {new.plugin!r} is already provided by "
                f"{taken.plugin!r}",
                hint="uninstall one of them, or block it with VLMKIT_BLOCK",
            )

    def _take(self, new: Provider[T]) -> None:
        self._refuse_malformed(new)
        self._refuse_taken(new)
        self._providers[new.name] = new
