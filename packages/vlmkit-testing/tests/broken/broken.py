"""The description of a broken component, and the table of those of one contract."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Contract = Callable[[Any], Any]
"""Returns a contract for a component, given the component's class."""


@dataclass(frozen=True)
class Broken:
    """A component that breaks one promise.

    Attributes:
        component: its class, or another argument of ``on``.
        promise: the sentence of the protocol that it breaks.
        killed_by: the test of the contract that must fail, without ``test_``. A parametrized test
            must fail for at least one set of arguments.
        raises: errors of the component that also count as a failure of the test.
        honest: the component that it was made from, which passes the same test. None means the
            table's.
        on: builds the contract for a component. None means the table's.
    """

    component: Any
    promise: str
    killed_by: str
    raises: tuple[type[Exception], ...] = ()
    honest: Any = None
    on: Contract | None = None

    @property
    def name(self) -> str:
        """The name of its class, in words."""
        return re.sub(r"(?<!^)(?=[A-Z])", " ", self.component.__name__).capitalize()


@dataclass(frozen=True)
class Table:
    """The broken components of one contract.

    Attributes:
        contract: the class of :mod:`vlmkit_testing`.
        on: builds the contract for a component.
        honest: the component from which most of the broken ones were made.
        broken: the broken components.
    """

    contract: type
    on: Contract
    honest: Any
    broken: tuple[Broken, ...]

    @property
    def name(self) -> str:
        """The name of the contract, without the word "Contract"."""
        return self.contract.__name__.removesuffix("Contract")

    def contract_on(self, broken: Broken) -> Any:
        """Return the contract on a broken component."""
        return (broken.on or self.on)(broken.component)

    def control(self, broken: Broken) -> tuple[Contract, Any, str]:
        """Return the builder of the contract, the honest component and the test that must pass."""
        return broken.on or self.on, broken.honest or self.honest, broken.killed_by
