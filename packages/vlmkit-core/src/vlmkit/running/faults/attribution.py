"""Which part of a pipeline a fault is laid on, and who made that part.

An error says so itself where it was caught beside the part; elsewhere the traceback does. Nothing
here is asked for while all goes well.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vlmkit.errors import EngineError, OutOfMemory, VlmkitError
from vlmkit.running.faults.isolation import engine_error


@dataclass(frozen=True, slots=True)
class ComponentNames:
    """Who made the parts of a pipeline.

    Attributes:
        names: how messages call providers, by the kind of what they made, and with a dot by the
            name of one of several: ``observer.log``. What is not here is called by its kind.
    """

    names: Mapping[str, str] = field(default_factory=dict)

    def of(self, part: str, name: str = "") -> str:
        """Return how messages call a part, or one of several of a kind."""
        words = part.replace("_", " ")
        if name:
            return self.names.get(f"{part}.{name}", f"{words} {name!r}")
        return self.names.get(part, f"the {words}")


UNKNOWN = ComponentNames()


class Fault(EngineError):  # noqa: N818 - as those of vlmkit.errors
    """A part returned what its protocol does not allow.

    Args:
        part: the kind of the part.
        problem: what it did, as the end of a sentence about it.
    """

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(f"{UNKNOWN.of(part)} {problem}")
        self.part = part
        self.problem = problem

    def told(self, component_names: ComponentNames) -> EngineError:
        """Return the same of who made the part."""
        return EngineError(f"{component_names.of(self.part)} {self.problem}")


class ComponentError(Exception):
    """A part raised what it does not explain.

    Args:
        part: the kind of the part.
        cause: what it raised.
    """

    def __init__(self, part: str, cause: Exception) -> None:
        super().__init__(part)
        self.part = part
        self.cause = cause


class ComponentFailed(EngineError):  # noqa: N818 - as those of vlmkit.errors
    """A part fails whatever it is given.

    Args:
        part: the kind of the part.
        component_names: who made it.
    """

    def __init__(self, part: str, component_names: ComponentNames) -> None:
        super().__init__(f"{component_names.of(part)} can compute nothing any more")
        self.part = part


@contextmanager
def attributing(component_names: ComponentNames, part: str, what: str) -> Iterator[None]:
    """Turn what a part does not explain into an error about it, and keep its words in the log.

    Raises:
        EngineError: the part failed on what it was given.
        OutOfMemory: it found no room for it.
    """
    try:
        yield
    except VlmkitError:
        raise
    except MemoryError as error:
        raise OutOfMemory(what) from error
    except Exception as error:  # a part may raise anything
        raise engine_error(
            f"{component_names.of(part)} failed on {what}", error, repeats=True
        ) from error


def faulty_component(error: BaseException, parts: Mapping[str, Any]) -> str | None:
    """Return which part raised an error, by the innermost method of one that it came through.

    None where the traceback names no part, as for one that is written in another language.
    """
    if isinstance(error, ComponentFailed):
        return error.part
    found, trace = None, error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        named = (name for name, part in parts.items() if part is not None and part is owner)
        found = next(named, found)
        trace = trace.tb_next
    return found
