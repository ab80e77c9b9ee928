"""Calls the functions of providers: builds components, examines models, lists and removes them.

Settings are checked first. An unexpected error of a provider becomes a ``PluginError``.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from vlmkit.errors import ConfigError, PluginError, VlmkitError
from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.model_uri import scheme_of, without_secrets
from vlmkit.kit.one_line import named
from vlmkit.kit.traces import trace_of
from vlmkit.plugins.build_context import BuildContext
from vlmkit.plugins.protocol_check import check_output
from vlmkit.plugins.provider import Provider
from vlmkit.plugins.providers import Providers
from vlmkit.plugins.setting_values import flaws, near

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)


class ComponentBuilder(Providers[T]):
    """Builds components of one kind by its providers.

    Args:
        kind: the kind, for messages.
        makes: the protocol or class of what is built; None leaves the check to the caller.
    """

    def __init__(self, kind: str, makes: type | None) -> None:
        super().__init__(kind)
        self._makes = makes

    def build(self, name: str, settings: Mapping[str, Any], context: BuildContext) -> T:
        """Choose a provider, check its settings and build the component.

        Raises:
            ConfigError: a setting is unknown or out of range.
            PluginError: the provider's ``build`` raised an unexpected error, or did not return the
                component.
        """
        provider = self._chosen(name, context)
        built = self._call(provider, provider.build, settings, context)
        check_output(built, self._makes, self.who(provider))
        return built

    def examine(self, name: str, settings: Mapping[str, Any], context: BuildContext) -> str:
        """Return how a provider would run a model; empty if it does not say. Builds nothing.

        Raises:
            VlmkitError: an error that :meth:`build` would raise, as far as possible without
                weights.
        """
        provider = self._chosen(name, context)
        if provider.examine is None:
            self.check_settings(provider, settings)
            return ""
        description: object = self._call(provider, provider.examine, settings, context)
        if not isinstance(description, str):
            raise PluginError(
                f"{self.who(provider)} was examined, and returned a value of type "
                f"{type(description).__name__!r}, not text"
            )
        return description

    def plan(
        self, name: str, settings: Mapping[str, Any], context: BuildContext, load: PlannedLoad
    ) -> MemoryPlan | None:
        """Return the memory that a component would take; None if its provider does not say.

        Raises:
            VlmkitError: an error that :meth:`build` would raise, as far as possible without
                weights.
        """
        provider = self._chosen(name, context)
        if provider.plan is None:
            self.check_settings(provider, settings)
            return None
        plan = provider.plan
        found = self._call(provider, lambda given: plan(given, load), settings, context)
        check_output(found, MemoryPlan, self.who(provider))
        return found

    def previews(self, name: str, context: BuildContext) -> Generator[Checkpoint, None, None]:
        """Yield the previews of a model that its source has before weights are downloaded.

        Close the generator; otherwise the last preview's folder stays until garbage collection.

        Raises:
            PluginError: the provider raised an unexpected error, or yielded something other than a
                checkpoint.
        """
        provider = self._chosen(name, context)
        if provider.previews is None:
            return
        with self._explained(provider, context):
            source: Any = iter(provider.previews(context))
        with ExitStack() as stack:
            if hasattr(source, "close"):  # as generators have, and other iterators have not
                stack.callback(source.close)
            while True:
                with self._explained(provider, context):
                    preview = next(source, None)
                if preview is None:
                    return
                check_output(preview, Checkpoint, self.who(provider))
                yield preview

    def remove(self, name: str, context: BuildContext) -> int:
        """Delete a model from this disk by its source; return the number of bytes that this freed.

        Raises:
            PluginError: the source cannot remove models, or raised an unexpected error.
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
        """Check settings and return them as the provider's own struct.

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
        """Call a provider's function with its checked settings; wrap unexpected errors."""
        checked = self.check_settings(provider, settings)
        with self._explained(provider, context):
            return function(replace(context, settings=checked))

    @contextmanager
    def _explained(self, provider: Provider[T], context: BuildContext) -> Iterator[None]:
        """Turn an unexpected error of a provider's function into a ``PluginError``."""
        who = self.who(provider)
        try:
            yield
        except (VlmkitError, KeyboardInterrupt):
            raise
        except BaseException as error:  # also SystemExit, and panics of other languages
            is_uri = scheme_of(context.reference) is not None  # it may hold a password
            if is_uri:
                log.warning("%s could not be built\n%s", who, trace_of(error))
            else:
                log.warning("%s could not be built", who, exc_info=error)
            raise PluginError(
                f"{who} could not be built: "  # for the owner of this machine
                f"{without_secrets(named(error), context.reference)}",
                hint="the log shows where, as does `vlmkit --debug ...`",
            ) from (None if is_uri else error)
