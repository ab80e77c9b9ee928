"""Finds providers of one kind by name, and chooses one that can serve; builds nothing."""

import difflib
from collections.abc import Iterator
from typing import Generic, TypeVar

from vlmkit.errors import ConfigError, PluginUnavailable, UnknownPlugin
from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import combined, hint_of
from vlmkit.plugins.names import OWN, is_called
from vlmkit.plugins.provider import Provider

T = TypeVar("T")


class Providers(Generic[T]):
    """The providers of one kind of component, by name.

    Args:
        kind: the kind, for messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._providers: dict[tuple[str, str], Provider[T]] = {}

    def __iter__(self) -> Iterator[Provider[T]]:
        """Yield the providers sorted by name, then by plugin."""
        return iter([self._providers[key] for key in sorted(self._providers)])

    def offers(self, name: str) -> bool:
        """Return whether a name matches at least one provider."""
        return bool(self._meant_by(name))

    def get(self, name: str) -> Provider[T]:
        """Return the provider of this name, or of ``distribution:name``.

        Raises:
            UnknownPlugin: no provider has the name; the hint has the nearest name.
            ConfigError: several distributions have one of this name; the hint says how to choose.
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
        """Return the name that selects a provider, with its distribution if that is needed."""
        is_clear = self._meant_by(provider.name) == [provider]
        return provider.name if is_clear else f"{provider.plugin}:{provider.name}"

    def who(self, provider: Provider[T]) -> str:
        """Return the description of a provider in messages, with its plugin."""
        return f"{self.kind} {provider.name!r} from {provider.plugin!r}"

    def suffixes(self) -> list[str]:
        """Return the suffixes of files that the providers own, sorted."""
        return sorted(suffix for provider in self for suffix in provider.suffixes)

    def objections(self, subject: object) -> dict[str, str | None]:
        """Return why each provider cannot serve ``subject`` here, by its key; None if it can."""
        return {self.key(p): p.objection(subject) for p in self}

    def able(self, subject: object) -> list[Provider[T]]:
        """Return the providers that can serve ``subject`` here, the preferred one first."""
        able = [provider for provider in self if provider.objection(subject) is None]
        return sorted(able, key=lambda provider: -provider.priority_for(subject))

    def choose(self, name: str, subject: object) -> Provider[T]:
        """Return the named provider, or for ``auto`` the preferred one that can serve.

        Raises:
            UnknownPlugin: no plugin provides the name.
            PluginUnavailable: the provider cannot serve; for ``auto``, none can. The message has
                the reason of each.
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
            reason = combined(reasons)
            raise PluginUnavailable(
                f"no installed {self.kind} can serve this model ({reason or 'none is installed'})",
                hint=reason.hint or f"install one: {install_command('vlmkit-torch')}, for example",
            )
        return max(able, key=lambda provider: provider.priority_for(subject))

    def _meant_by(self, name: str) -> list[Provider[T]]:
        """Return the providers that a name matches; built-in providers take precedence."""
        source, _, bare = name.rpartition(":")
        builtin = self._providers.get((bare, OWN))
        if builtin is not None and not source:
            return [builtin]
        meant = (p for p in self if p.name == bare)
        return [p for p in meant if not source or is_called(p.plugin, source)]
