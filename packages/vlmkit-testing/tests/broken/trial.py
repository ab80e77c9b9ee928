"""Runs one test of a contract on one component, without a pytest run for each."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import Phase, settings

from broken.broken import Broken

Lend = Callable[[str], Any]
"""Returns a built-in fixture of pytest, such as ``tmp_path``, by its name."""


class SkippedError(Exception):
    """A test was skipped with every set of parameters."""


def failure(contract: Any, test: str, lend: Lend) -> BaseException | None:
    """Run a test with each set of its parameters; return the first failure, or None.

    Raises:
        SkippedError: the test was skipped with all of them.
    """
    method = getattr(contract, f"test_{test}")
    reasons: list[str] | None = []
    try:
        for arguments in _parameters(method):
            try:
                _run(contract, method, arguments, lend)
                reasons = None
            except pytest.skip.Exception as skip:
                if reasons is not None:
                    reasons.append(str(skip))
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is judged later
                return error
    finally:
        getattr(contract, "tidy", lambda: None)()
    if reasons is not None:
        raise SkippedError(f"{test} was skipped: {', '.join(reasons)}")
    return None


def is_expected(error: BaseException, broken: Broken) -> bool:
    """Return whether a test failed by an assertion, or by an expected error of the component."""
    if isinstance(error, BaseExceptionGroup):  # hypothesis reports several failures so
        return all(is_expected(each, broken) for each in error.exceptions)
    return isinstance(error, (AssertionError, pytest.fail.Exception, *broken.raises))


@contextmanager
def _unshrunk(method: Any) -> Iterator[None]:
    """Make hypothesis report the first failing example, without shrinking it."""
    if not hasattr(method, "hypothesis"):
        yield
        return
    function, name = method.__func__, "_hypothesis_internal_use_settings"
    before = getattr(function, name)
    setattr(function, name, settings(before, phases=[Phase.explicit, Phase.generate]))
    try:
        yield
    finally:
        setattr(function, name, before)


def _parameters(method: Any) -> Iterator[dict[str, Any]]:
    """Yield each set of arguments of a parametrized test."""
    marks = [mark for mark in getattr(method, "pytestmark", ()) if mark.name == "parametrize"]
    for choice in itertools.product(*(_rows(*mark.args) for mark in marks)):
        yield {name: value for row in choice for name, value in row.items()}


def _rows(named: str | Sequence[str], values: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the arguments of each row of one mark."""
    names = [name.strip() for name in named.split(",")] if isinstance(named, str) else named
    rows = (value if len(names) > 1 else (value,) for value in map(_plain, values))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _plain(value: Any) -> Any:
    """Return the value of a row, without its id and marks."""
    if not isinstance(value, type(pytest.param())):
        return value
    return value.values if len(value.values) > 1 else value.values[0]


def _run(contract: Any, method: Any, arguments: dict[str, Any], lend: Lend) -> None:
    """Run a test once, with fresh fixtures of the contract."""
    made: dict[str, Any] = {}

    def fixture(name: str) -> Any:
        if name not in made:
            maker = getattr(type(contract), name, None)
            made[name] = lend(name) if maker is None else make(inspect.unwrap(maker))
        return made[name]

    def make(function: Any) -> Any:
        wanted = list(inspect.signature(function).parameters)[1:]
        value = function(contract, **{name: fixture(name) for name in wanted})
        if not inspect.isgenerator(value):
            return value
        ends.callback(next, value, None)
        return next(value)

    with ExitStack() as ends:
        ends.enter_context(_unshrunk(method))
        wanted = set(inspect.signature(method).parameters) - set(arguments)
        method(**arguments, **{name: fixture(name) for name in wanted})
