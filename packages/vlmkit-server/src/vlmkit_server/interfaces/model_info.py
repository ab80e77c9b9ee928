"""A served model as an API lists it: its names, its state and its facts."""

from dataclasses import dataclass

from vlmkit.interfaces.runner import RunnerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A served model, loaded or not.

    Attributes:
        names: the names that clients may use, its own name first.
        created_s: when the server added it, in seconds since the epoch.
        is_in_memory: whether it is loaded.
        memory_bytes: its size in the memory budget; None while unknown.
        facts: the facts of its runner; None before it is first loaded.
    """

    names: tuple[str, ...]
    created_s: int
    is_in_memory: bool
    memory_bytes: int | None
    facts: RunnerFacts | None

    @property
    def name(self) -> str:
        """The operator's name for it."""
        return self.names[0]
