"""What a sampler says of itself, read off it."""

from vlmkit.errors import PluginError
from vlmkit.interfaces.sampler import FOLLOWED, Sampler, SamplerClaims


def claims_of(sampler: Sampler) -> SamplerClaims:
    """Return what a sampler says that it ignores, and whether it is exact.

    Raises:
        PluginError: it says so of what is no parameter of a sampler's, or not in these types.
    """
    ignores: object = getattr(sampler, "ignores", frozenset())
    is_exact: object = getattr(sampler, "is_exact", True)
    who = f"the sampler {type(sampler).__name__!r}"
    if not isinstance(ignores, frozenset | set) or not all(isinstance(n, str) for n in ignores):
        raise PluginError(f"{who} has ignores of type {type(ignores).__name__!r}, not a frozenset")
    if unknown := sorted(ignores - FOLLOWED):
        raise PluginError(
            f"{who} says that it ignores {unknown[0]!r}, which is not a sampler's to follow",
            hint=f"there are: {', '.join(sorted(FOLLOWED))}",
        )
    if not isinstance(is_exact, bool):
        raise PluginError(f"{who} has is_exact of type {type(is_exact).__name__!r}, not a bool")
    return SamplerClaims(frozenset(ignores), is_exact)
