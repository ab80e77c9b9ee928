"""Registering providers: what a plugin's hook receives.

Plugins fill registries when they are loaded. A registry never imports a plugin, and pluggy is not
used here.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from vlmkit.checkpoints.package import PackagedPath, check_packaged, only, packaged_model
from vlmkit.deprecated import renamed
from vlmkit.errors import PluginError
from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.interfaces.request_field import Changes, RequestField
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.model_uri import scheme_of
from vlmkit.kit.single_file import suffix_of
from vlmkit.plugins.build_context import (
    BuildContext,
    KindProviders,
    OtherModel,
    Registered,
    ignore_progress,
)
from vlmkit.plugins.component_builder import ComponentBuilder
from vlmkit.plugins.kinds import Owns, Serves
from vlmkit.plugins.names import is_plain
from vlmkit.plugins.provider import (
    CALLS,
    EXPECTED,
    Provider,
    can_run,
    can_serve,
    misfit,
    takes_providers,
)
from vlmkit.plugins.settings_check import flaw
from vlmkit.running.prompting.request_fields import flaw_of_field

__all__ = [
    "BuildContext",
    "KindProviders",
    "OtherModel",
    "Provider",
    "Registered",
    "Registry",
    "ignore_progress",
]

T = TypeVar("T")


def __getattr__(name: str) -> Any:
    return renamed(__name__, name)


class Registry(ComponentBuilder[T]):
    """The providers of one kind, and what a ``vlmkit_register_*`` hook receives.

    Args:
        kind: the kind, for messages.
        plugin: the distribution or file that registers.
        makes: the protocol or class of what is built; None leaves the check to the caller.
        reserved: names that only one distribution may use, and that distribution.
        max_words: words that a name may have.
        serves: what a provider without ``cannot_serve`` can be used for.
        owns: the parts of model references that one provider alone may serve.
        field_changes: what the request fields that its providers add may change.
        registries: those of all kinds, which providers may ask in ``cannot_serve``.
    """

    def __init__(
        self,
        kind: str,
        plugin: str = "vlmkit",
        *,
        makes: type | None = None,
        reserved: Mapping[str, str] = MappingProxyType({}),
        max_words: int = 1,
        serves: Serves = "all",
        owns: Iterable[Owns] = (),
        field_changes: Iterable[Changes] = (),
        registries: Mapping[str, Registered[Any]] = MappingProxyType({}),
    ) -> None:
        super().__init__(kind, makes)
        self.plugin = plugin
        self._reserved = reserved
        self._max_words = max_words
        self._serves = serves
        self._owns = frozenset(owns)
        self._field_changes = tuple(field_changes)
        self._kind_providers = KindProviders(registries)

    def add(  # noqa: PLR0913 - one each of what a provider consists of
        self,
        name: str,
        build: Callable[[BuildContext], T],
        *,
        why_not: Callable[[], str | None] = can_run,
        cannot_serve: Callable[..., str | None] = can_serve,
        settings: type[msgspec.Struct] | None = None,
        priority: int | Callable[[Any], int] = 0,
        description: str = "",
        examine: Callable[[BuildContext], str] | None = None,
        plan: Callable[[BuildContext, PlannedLoad], MemoryPlan] | None = None,
        keep: Callable[[BuildContext, Path | None], str | None] | None = None,
        list_models: Callable[[], Iterable[str]] | None = None,
        previews: Callable[[BuildContext], Iterator[Checkpoint]] | None = None,
        remove: Callable[[BuildContext], int] | None = None,
        schemes: tuple[str, ...] = (),
        suffixes: tuple[str, ...] = (),
        request_fields: tuple[RequestField[Any], ...] = (),
        runner: str = "",
    ) -> None:
        """Offer ``build`` under ``name``; see :class:`Provider` for the rest.

        Raises:
            PluginError: the name is not a plain word or is taken, a scheme belongs to another
                provider, or an argument is of a wrong type.
        """
        if not is_plain(name, self._max_words) or name in ("auto", "none"):
            raise PluginError(
                f"{self.kind} name {name!r} must be letters, digits, '-' or '_'",
                hint="auto and none mean something of their own",
            )
        is_stated = cannot_serve is not can_serve
        if (schemes or suffixes) and not is_stated:
            refuses_others = _refuses_other_schemes(schemes) if schemes else _reads_only(suffixes)
            cannot_serve, is_stated = refuses_others, True
        new = Provider(
            name=name,
            build=build,
            why_not=why_not,
            cannot_serve=cannot_serve,
            settings=settings,
            priority=priority,
            description=description,
            examine=examine,
            plan=plan,
            keep=keep,
            list_models=list_models,
            previews=previews,
            remove=remove,
            schemes=schemes,
            suffixes=suffixes,
            request_fields=request_fields,
            runner=runner,
            plugin=self.plugin,
            is_by_name=self._serves != "all" and not is_stated,
            asks_providers=takes_providers(cannot_serve),
        )
        self._refuse_malformed(new)
        self._take(new)

    def add_packaged(self, name: str, path: PackagedPath, *, description: str = "") -> None:
        """Offer the model in a folder of your package under ``name``.

        Args:
            name: how users call it.
            path: the folder, absolute or as :func:`importlib.resources.files` has it.
            description: one line for ``vlmkit models list``.

        Raises:
            PluginError: this is no registry of models, the path is none, or as for :meth:`add`.
        """
        if self._makes not in (None, Checkpoint):
            raise PluginError(f"{self.kind} {name!r} is no model, so it cannot be a packaged one")
        check_packaged(name, path)
        plugin: Any = self.plugin
        made: Any = lambda _: packaged_model(name, path, plugin)  # noqa: E731 - a checkpoint is T
        self.add(name, made, cannot_serve=only(name), description=description)

    def merge(self, other: "Registry[T]") -> None:
        """Take everything that ``other`` offers, or nothing."""
        for provider in other:
            self._refuse_taken(provider)
        for provider in other:
            self._take(provider)

    def _refuse_malformed(self, new: Provider[T]) -> None:
        for name, is_right, expected in EXPECTED:
            value = getattr(new, name)
            if not is_right(value):
                raise PluginError(
                    f"{self.kind} {new.name!r} must be given {expected} as {name}, not a value of "
                    f"type {type(value).__name__!r}"
                )
        self._refuse_other_signatures(new)
        if inspect.iscoroutinefunction(new.build) or inspect.isgeneratorfunction(new.build):
            raise PluginError(
                f"the build of {self.kind} {new.name!r} is an async function or one that yields",
                hint="build is a plain function that returns the component",
            )
        if new.settings is not None and (problem := flaw(new.settings)):
            raise PluginError(
                f"the settings {new.settings.__name__!r} of {self.kind} {new.name!r} cannot work: "
                f"the struct {problem}",
                hint="every field has a default, and a type that a config file can hold",
            )

        for field in new.request_fields:
            if unfit := flaw_of_field(field, self._field_changes):
                raise PluginError(f"{self.kind} {new.name!r} adds no field to requests: {unfit}")
        names = [field.name for field in new.request_fields]
        if len(set(names)) < len(names):
            raise PluginError(f"{self.kind} {new.name!r} adds one field to requests twice")

    def _refuse_other_signatures(self, new: Provider[T]) -> None:
        for name, arguments in CALLS.items():
            function = getattr(new, name)
            if callable(function) and (problem := misfit(name, function)):
                raise PluginError(
                    f"the {name} of {self.kind} {new.name!r} cannot be called: {problem}",
                    hint=f"vlmkit calls {name}({', '.join(arguments)})",
                )

    def _refuse_taken(self, new: Provider[T]) -> None:
        if self._reserved.get(new.name, new.plugin) != new.plugin:
            raise PluginError(
                f"{self.kind} {new.name!r} from {new.plugin!r} has the name of one of vlmkit's own",
                hint="give it another name",
            )
        if new.schemes and "schemes" not in self._owns:
            raise PluginError(
                f"{self.kind} {new.name!r} cannot own schemes, which models and runners have"
            )
        if new.suffixes and "suffixes" not in self._owns:
            raise PluginError(f"{self.kind} {new.name!r} cannot own suffixes, which models have")
        if new.suffixes and new.schemes:
            raise PluginError(
                f"{self.kind} {new.name!r} owns schemes and suffixes",
                hint="register one provider that fetches, and one that reads",
            )
        for own in self:
            if shared := sorted(set(own.suffixes).intersection(new.suffixes)):
                raise PluginError(
                    f"{self.who(new)} owns the suffix {shared[0]!r}, which {own.name!r} from "
                    f"{own.plugin!r} owns already",
                    hint="uninstall one of them, or block it with VLMKIT_BLOCK",
                )
            if shared := sorted(set(own.schemes).intersection(new.schemes)):
                raise PluginError(
                    f"{self.who(new)} owns the scheme {shared[0]!r}, which {own.name!r} from "
                    f"{own.plugin!r} owns already",
                    hint="uninstall one of them, or block it with VLMKIT_BLOCK",
                )
        if (new.name, new.plugin) in self._providers:
            raise PluginError(
                f"{self.kind} {new.name!r} is registered twice by {new.plugin!r}",
                hint="give one of them another name",
            )

    def _take(self, new: Provider[T]) -> None:
        self._refuse_taken(new)
        new = replace(new, providers=self._kind_providers)
        self._providers[new.name, new.plugin] = new


def _refuses_other_schemes(schemes: object) -> Callable[[object], str | None]:
    """Return the ``cannot_serve`` of a provider that has schemes and states none."""
    owned = schemes if isinstance(schemes, tuple) else ()
    begun = " or ".join(f"'{scheme}://'" for scheme in owned)
    reason = f"it has only what begins with {begun}"

    def cannot_serve(subject: object) -> str | None:
        is_owned = isinstance(subject, str) and scheme_of(subject) in owned
        return None if is_owned else reason

    return cannot_serve


def _reads_only(suffixes: object) -> Callable[[object], str | None]:
    """Return the ``cannot_serve`` of a source that owns suffixes and states none."""
    owned = suffixes if isinstance(suffixes, tuple) else ()
    reason = f"it reads only files that end with {' or '.join(map(repr, owned))}"

    def cannot_serve(subject: object) -> str | None:
        file = subject.file if isinstance(subject, Checkpoint) else None
        return None if file is not None and suffix_of(file.name, owned) else reason

    return cannot_serve
