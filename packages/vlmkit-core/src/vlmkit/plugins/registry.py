"""Named providers of one kind of component, and how one of them is built.

A registry is filled by plugins at start-up and asked by the pipeline afterwards. It knows nothing
of pluggy and never imports a plugin.
"""

import difflib
import inspect
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from vlmkit.checkpoints.package import PackagedPath, check_packaged, only, packaged_model
from vlmkit.checkpoints.uri import scheme_of, without_secrets
from vlmkit.deprecated import renamed
from vlmkit.errors import ConfigError, PluginError, PluginUnavailable, UnknownPlugin, VlmkitError
from vlmkit.interfaces.request_field import Changes, RequestField
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import hint_of, together
from vlmkit.kit.one_line import named
from vlmkit.kit.traces import trace_of
from vlmkit.plugins.build_context import BuildContext, ignore_progress
from vlmkit.plugins.kinds import Serves
from vlmkit.plugins.names import OWN, is_called, is_plain
from vlmkit.plugins.output_check import check_output
from vlmkit.plugins.provider import EXPECTED, Provider, can_run, can_serve
from vlmkit.plugins.setting_values import flaws, near
from vlmkit.plugins.settings_check import flaw
from vlmkit.running.prompting.request_fields import flaw_of_field

__all__ = ["BuildContext", "Provider", "Registry", "ignore_progress"]

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    return renamed(__name__, name)


class Registry(Generic[T]):
    """What a ``vlmkit_register_*`` hook receives.

    Args:
        kind: what it holds, for messages.
        plugin: who fills it.
        makes: the protocol or class of what is built; None leaves the check to who asks for it.
        reserved: names that only one distribution may give, which each leads to.
        max_words: words that a name may have.
        serves: what a provider without ``cannot_serve`` can be used for.
        field_changes: what the fields may change that its providers add to requests.
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
        field_changes: Iterable[Changes] = (),
    ) -> None:
        self.kind = kind
        self.plugin = plugin
        self._makes = makes
        self._reserved = reserved
        self._max_words = max_words
        self._serves = serves
        self._field_changes = tuple(field_changes)
        self._providers: dict[tuple[str, str], Provider[T]] = {}

    def __iter__(self) -> Iterator[Provider[T]]:
        """Yield the providers by name, and those of one name by who offers them."""
        return iter([self._providers[place] for place in sorted(self._providers)])

    def add(  # noqa: PLR0913 - one each of what a provider consists of
        self,
        name: str,
        build: Callable[[BuildContext], T],
        *,
        why_not: Callable[[], str | None] = can_run,
        cannot_serve: Callable[[Any], str | None] = can_serve,
        settings: type[msgspec.Struct] | None = None,
        priority: int | Callable[[Any], int] = 0,
        description: str = "",
        examine: Callable[[BuildContext], str] | None = None,
        keep: Callable[[BuildContext, Path | None], str | None] | None = None,
        list_models: Callable[[], Iterable[str]] | None = None,
        previews: Callable[[BuildContext], Iterator[Checkpoint]] | None = None,
        remove: Callable[[BuildContext], int] | None = None,
        schemes: tuple[str, ...] = (),
        request_fields: tuple[RequestField[Any], ...] = (),
    ) -> None:
        """Offer ``build`` under ``name``; see :class:`Provider` for the rest.

        Raises:
            PluginError: the name is not a plain word or was given before, a scheme is another's, or
                an argument is of a kind that would break the choice among all providers later on.
        """
        if not is_plain(name, self._max_words) or name in ("auto", "none"):
            raise PluginError(
                f"{self.kind} name {name!r} must be letters, digits, '-' or '_'",
                hint="auto and none mean something of their own",
            )
        is_stated = cannot_serve is not can_serve
        if schemes and not is_stated:
            cannot_serve, is_stated = _refuses_others(schemes), True
        new = Provider(
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
            previews=previews,
            remove=remove,
            schemes=schemes,
            request_fields=request_fields,
            plugin=self.plugin,
            is_by_name=self._serves != "all" and not is_stated,
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

    def offers(self, name: str) -> bool:
        """Tell whether there is a provider that may be meant by a name."""
        return bool(self._meant_by(name))

    def get(self, name: str) -> Provider[T]:
        """Return the provider of this name, or of ``distribution:name``.

        Raises:
            UnknownPlugin: there is none; the hint names the nearest.
            ConfigError: several distributions offer one of this name; the hint says how to choose.
        """
        meant = self._meant_by(name)
        if len(meant) == 1:
            return meant[0]
        if meant:
            raise ConfigError(
                f"{self.kind} {name!r} is offered by {' and '.join(repr(p.plugin) for p in meant)}",
                hint=f"say which: {' or '.join(repr(self.key(p)) for p in meant)}",
            )
        known = [self.key(provider) for provider in self]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"installed: {', '.join(known) or 'none'}"
        raise UnknownPlugin(f"no installed plugin provides {self.kind} {name!r}", hint=hint)

    def key(self, provider: Provider[T]) -> str:
        """Return what chooses a provider: its name, with its distribution if that is not enough."""
        is_clear = self._meant_by(provider.name) == [provider]
        return provider.name if is_clear else f"{provider.plugin}:{provider.name}"

    def who(self, provider: Provider[T]) -> str:
        """Return how messages call a provider and who offers it."""
        return f"{self.kind} {provider.name!r} from {provider.plugin!r}"

    def _meant_by(self, name: str) -> list[Provider[T]]:
        """Return the providers that a config may mean; a name of vlmkit's own means vlmkit's."""
        source, _, bare = name.rpartition(":")
        own = self._providers.get((bare, OWN))
        if own is not None and not source:
            return [own]
        meant = (p for p in self if p.name == bare)
        return [p for p in meant if not source or is_called(p.plugin, source)]

    def objections(self, subject: object) -> dict[str, str | None]:
        """Say of every provider why it cannot serve ``subject`` here; None where it can.

        Providers go by what chooses them.
        """
        return {self.key(p): p.objection(subject) for p in self}

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
            if reason := provider.objection(subject, is_named=True):
                raise PluginUnavailable(
                    f"{self.who(provider)} cannot be used: {reason}", hint=hint_of(reason)
                )
            return provider
        reasons = self.objections(subject)
        able = [p for p in self if reasons[self.key(p)] is None]
        if not able:
            every = together(reasons)
            raise PluginUnavailable(
                f"no installed {self.kind} can serve this model ({every or 'none is installed'})",
                hint=every.hint or f"install one: {install_command('vlmkit-torch')}, for example",
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
        check_output(built, self._makes, self.who(provider))
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
        said: object = self._call(provider, provider.examine, settings, context)
        if not isinstance(said, str):
            raise PluginError(
                f"{self.who(provider)} was examined, and said a value of type "
                f"{type(said).__name__!r} in place of words"
            )
        return said

    def previews(self, name: str, context: BuildContext) -> Generator[Checkpoint, None, None]:
        """Yield what a source of models shows of one before its weights are fetched.

        Close it, or the folder of the last one stays until it is collected.

        Raises:
            PluginError: the provider failed in a way that it does not explain, or yielded
                something other than a checkpoint.
        """
        provider = self._chosen(name, context)
        if provider.previews is None:
            return
        with self._explained(provider, context):
            source: Any = provider.previews(context)
        with closing(source):
            while True:
                with self._explained(provider, context):
                    preview = next(source, None)
                if preview is None:
                    return
                check_output(preview, Checkpoint, self.who(provider))
                yield preview

    def remove(self, name: str, context: BuildContext) -> int:
        """Delete a model from this disk by the source that has it; return how many bytes it freed.

        Raises:
            PluginError: the source cannot, or failed in a way that it does not explain.
            CheckpointError: the model is not on this disk.
        """
        provider = self._chosen(name, context)
        if provider.remove is None:
            raise PluginError(
                f"{self.who(provider)} cannot remove models", hint="see its documentation"
            )
        with self._explained(provider, context):
            return int(provider.remove(context))

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
        who = f"{self.kind} {provider.name!r}"
        known = [f.encode_name for f in msgspec.structs.fields(wanted)]
        listed = f"known: {', '.join(known)}"
        errors = [
            ConfigError(f"{who} has no setting {key!r}", hint=near(key, known) or listed)
            for key in settings
            if key not in known
        ]
        given = {key: value for key, value in settings.items() if key in known}
        try:
            checked = msgspec.convert(given, wanted, strict=False)
        except msgspec.ValidationError:
            found = flaws(given, wanted, is_strict=False)
            errors += [ConfigError(f"{who}: {flaw.text()}", hint=flaw.hint) for flaw in found]
        if errors:
            raise ConfigError.together(errors)
        return checked

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
        with self._explained(provider, context):
            return function(replace(context, settings=checked))

    @contextmanager
    def _explained(self, provider: Provider[T], context: BuildContext) -> Iterator[None]:
        """Wrap an error of a provider's function that it does not explain itself."""
        who = self.who(provider)
        try:
            yield
        except (VlmkitError, KeyboardInterrupt):
            raise
        except BaseException as error:  # it may end the process, or panic in another language
            is_uri = scheme_of(context.reference) is not None  # which may hold a password
            if is_uri:
                log.warning("%s could not be built\n%s", who, trace_of(error))
            else:
                log.warning("%s could not be built", who, exc_info=error)
            raise PluginError(
                f"{who} could not be built: "  # for the owner of this machine
                f"{without_secrets(named(error), context.reference)}",
                hint="the log shows where, as does `vlmkit --debug ...`",
            ) from (None if is_uri else error)

    def _refuse_malformed(self, new: Provider[T]) -> None:
        for name, is_right, expected in EXPECTED:
            value = getattr(new, name)
            if not is_right(value):
                raise PluginError(
                    f"{self.kind} {new.name!r} must be given {expected} as {name}, not a value of "
                    f"type {type(value).__name__!r}"
                )
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

    def _refuse_taken(self, new: Provider[T]) -> None:
        if self._reserved.get(new.name, new.plugin) != new.plugin:
            raise PluginError(
                f"{self.kind} {new.name!r} from {new.plugin!r} has the name of one of vlmkit's own",
                hint="give it another name",
            )
        if new.schemes and self._serves != "own":
            raise PluginError(f"{self.kind} {new.name!r} cannot own schemes, which models have")
        for own in self:
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
        self._providers[new.name, new.plugin] = new


def _refuses_others(schemes: object) -> Callable[[str], str | None]:
    """Return the ``cannot_serve`` of a source that has schemes and states none."""
    owned = schemes if isinstance(schemes, tuple) else ()
    begun = " or ".join(f"'{scheme}://'" for scheme in owned)
    reason = f"it has only what begins with {begun}"
    return lambda reference: None if scheme_of(reference) in owned else reason
