"""Fault attribution: which component of a pipeline failed, and which provider it came from.

An error that is caught beside the component names it. Elsewhere, the traceback does. No code here
runs while no component fails.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vlmkit.errors import EngineError, OutOfMemory, VlmkitError
from vlmkit.running.faults.isolation import engine_error


@dataclass(frozen=True, slots=True)
class ComponentNames:
    """The names by which messages call the components of a pipeline.

    Attributes:
        names: the name of each component's provider, by the component's kind. One of several
            components of a kind is under ``kind.name``, such as ``observer.log``. A component
            without an entry is called by its kind.
    """

    names: Mapping[str, str] = field(default_factory=dict)

    def of(self, component: str, name: str = "") -> str:
        """Return the name of a component, or of one of several of its kind."""
        words = component.replace("_", " ")
        if name:
            return self.names.get(f"{component}.{name}", f"{words} {name!r}")
        return self.names.get(component, f"the {words}")


UNKNOWN = ComponentNames()


class Fault(EngineError):  # noqa: N818 - as those of vlmkit.errors
    """A component returned what its protocol does not allow.

    Args:
        component: the kind of the component.
        problem: what it did: a predicate whose subject is the component.
    """

    def __init__(self, component: str, problem: str) -> None:
        super().__init__(f"{UNKNOWN.of(component)} {problem}")
        self.component = component
        self.problem = problem

    def attributed_to(self, component_names: ComponentNames) -> EngineError:
        """Return the same error, with the name of the component's provider."""
        return EngineError(f"{component_names.of(self.component)} {self.problem}")


class ComponentError(Exception):
    """A component raised an error that is not one of vlmkit's.

    Args:
        component: the kind of the component.
        cause: the error that it raised.
    """

    def __init__(self, component: str, cause: Exception) -> None:
        super().__init__(component)
        self.component = component
        self.cause = cause


class ComponentFailed(EngineError):  # noqa: N818 - as those of vlmkit.errors
    """A component fails on every input.

    Args:
        component: the kind of the component.
        component_names: the names of the components.
    """

    def __init__(self, component: str, component_names: ComponentNames) -> None:
        super().__init__(f"{component_names.of(component)} can compute nothing any more")
        self.component = component


@contextmanager
def attributing(component_names: ComponentNames, component: str, what: str) -> Iterator[None]:
    """Turn an unexpected error of a component into an error that names the component.

    The log gets the traceback without the error's text, which may quote a request.

    Raises:
        EngineError: the component failed on its input.
        OutOfMemory: there is not enough memory for the input.
    """
    try:
        yield
    except VlmkitError:
        raise
    except MemoryError as error:
        raise OutOfMemory(what) from error
    except Exception as error:  # a component may raise anything
        raise engine_error(
            f"{component_names.of(component)} failed on {what}", error, may_quote_input=True
        ) from error


def faulty_component(error: BaseException, components: Mapping[str, Any]) -> str | None:
    """Return the kind of the component that raised an error.

    It is the component with the innermost method in the traceback. None if the traceback has no
    method of a component, as when the component is written in another language.
    """
    if isinstance(error, ComponentFailed):
        return error.component
    found, trace = None, error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        named = (kind for kind, each in components.items() if each is not None and each is owner)
        found = next(named, found)
        trace = trace.tb_next
    return found
