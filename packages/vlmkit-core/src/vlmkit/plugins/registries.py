"""The registries of all kinds, one for each."""

from collections.abc import Iterable
from typing import Any, TypeGuard, TypeVar, get_args

from vlmkit.errors import PluginError
from vlmkit.plugins.kinds import KINDS, Kind, Mode
from vlmkit.plugins.registry import Registry

T = TypeVar("T")


def _is_kind(thing: object) -> TypeGuard[Kind[Any]]:
    """Return whether a value is a valid kind."""
    return (
        isinstance(thing, Kind)
        and _is_word(thing.name)
        and isinstance(thing.makes, type | None)
        and thing.mode in get_args(Mode)
    )


def _is_word(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier()


class Registries:
    """The registries of several kinds, such as ``registries.engines`` for the kind ``engine``.

    Args:
        owner: the distribution that registers providers.
        kinds: the kinds.
    """

    def __init__(self, owner: str = "vlmkit", kinds: Iterable[Kind[Any]] = KINDS) -> None:
        self.owner = owner
        self.kinds = tuple(kinds)
        self.by_kind: dict[str, Registry[Any]] = {}
        for kind in self.kinds:
            self._open(kind)

    def __getattr__(self, name: str) -> Registry[Any]:
        registries: dict[str, Registry[Any]] = self.__dict__.get("by_kind", {})
        if name not in registries:
            raise AttributeError(f"there is no kind {name!r}; known: {', '.join(registries)}")
        return registries[name]

    def of(self, kind: Kind[T]) -> Registry[T]:
        """Return the registry of a kind."""
        return self.by_kind[kind.plural]

    def own(self, kinds: object) -> None:
        """Add the kinds that a plugin owns; all or none.

        Raises:
            PluginError: a value is not a kind, or its name is taken.
        """
        new: dict[str, Kind[Any]] = {}
        if not isinstance(kinds, tuple | list):
            raise PluginError(
                f"VLMKIT_KINDS is of type {type(kinds).__name__!r}", hint="make it a tuple of kinds"
            )
        for kind in kinds:
            if not _is_kind(kind):
                raise PluginError(
                    f"VLMKIT_KINDS holds {kind!r}",
                    hint='put in kinds, such as Kind("weight_format", WeightFormat, "one", ...)',
                )
            if kind.plural in self.by_kind or kind.plural in new:
                raise PluginError(
                    f"there is a kind {kind.name!r} already", hint="give it another name"
                )
            new[kind.plural] = kind
        self.kinds = (*self.kinds, *new.values())
        for kind in new.values():
            self._open(kind)

    def merge(self, other: "Registries") -> None:
        """Add all providers of ``other``, or none if one cannot be added."""
        combined = Registries(kinds=self.kinds)
        for source in (self, other):
            for plural, registry in source.by_kind.items():
                combined.by_kind[plural].merge(registry)
        combined.refuse_shared_schemes()
        for plural, registry in other.by_kind.items():
            self.by_kind[plural].merge(registry)

    def _open(self, kind: Kind[Any]) -> None:
        """Make the empty registry of a kind."""
        self.by_kind[kind.plural] = Registry(
            kind.words,
            self.owner,
            makes=kind.makes,
            reserved=kind.reserved,
            max_words=kind.max_words,
            serves=kind.serves,
            owns=kind.owns,
            field_changes=kind.field_changes,
            registries=self.by_kind,
        )

    def refuse_shared_schemes(self) -> None:
        """Check that providers of different kinds own different schemes.

        Raises:
            PluginError: two providers own a scheme.
        """
        owners: dict[str, str] = {}
        for registry in self.by_kind.values():
            for provider in registry:
                who = registry.who(provider)
                for scheme in provider.schemes:
                    if (other := owners.setdefault(scheme, who)) != who:
                        raise PluginError(
                            f"{who} owns the scheme {scheme!r}, which {other} owns already",
                            hint="uninstall one of them, or block it with VLMKIT_BLOCK",
                        )
