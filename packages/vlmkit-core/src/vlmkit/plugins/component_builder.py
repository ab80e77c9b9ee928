"""Building components by their providers, and what else a provider's functions do.

Settings are checked first. An error that a provider does not explain becomes a ``PluginError``.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from vlmkit.errors import ConfigError, PluginError, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.model_uri import scheme_of, without_secrets
from vlmkit.kit.one_line import named
from vlmkit.kit.traces import trace_of
from vlmkit.plugins.build_context import BuildContext
from vlmkit.plugins.output_check import check_output
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
