"""What is said of a broken component, and of all that are tried on one contract."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Contract = Callable[[Any], Any]
"""Returns an instance of a contract that is filled in for one component, given its class."""


@dataclass(frozen=True)
class Broken:
    """A component that breaks one promise.

    Attributes:
        component: its class, or whatever the contract is filled in with.
        promise: the sentence of the protocol that it breaks.
        killed_by: the contract's test that must fail, without ``test_``. One with parameters must
            fail for one set of them.
        raises: errors of the component by which the test may fail, beside an assertion of its own.
        honest: what it was made from, on which the same test passes; None is the table's.
        on: fills the contract in; None is the table's.
    """

    component: Any
    promise: str
    killed_by: str
    raises: tuple[type[Exception], ...] = ()
    honest: Any = None
    on: Contract | None = None

    @property
    def name(self) -> str:
        """Its class's name in words."""
        return re.sub(r"(?<!^)(?=[A-Z])", " ", self.component.__name__).capitalize()


@dataclass(frozen=True)
class Table:
    """All that is tried on one contract.

    Attributes:
        contract: the class of :mod:`vlmkit_testing`.
        on: fills it in for a component.
        honest: what most of the broken ones were made from.
        broken: the broken ones.
    """

    contract: type
    on: Contract
    honest: Any
    broken: tuple[Broken, ...]

    @property
    def name(self) -> str:
        """The contract's, without the word."""
        return self.contract.__name__.removesuffix("Contract")

    def contract_on(self, broken: Broken) -> Any:
        """Return the contract on a broken component."""
        return (broken.on or self.on)(broken.component)

    def control(self, broken: Broken) -> tuple[Contract, Any, str]:
        """Return how to fill the contract in, what with, and which of its tests must pass then."""
        return broken.on or self.on, broken.honest or self.honest, broken.killed_by
