"""Contracts detect broken components: each one fails the named test of its contract.

The same test passes on the honest component from which the broken one was made.

The nox session ``tests`` runs a sample: one broken component for each test of a contract, and each
honest component once. The others are marked slow. The nox session ``contract`` runs all of them.
"""

import inspect
import re

import pytest
from broken import page
from broken.tables import TABLES
from broken.trial import failure, is_expected

import vlmkit_testing

BROKEN = [(table, broken) for table in TABLES for broken in table.broken]
CONTROLS = list(dict.fromkeys(table.control(broken) for table, broken in BROKEN))


def first_of_each(rows, what):
    """Return the first row for each value of ``what``."""
    return list({what(*row): row for row in reversed(rows)}.values())


def trials(rows, sample, name):
    """Return the parameters of a test; rows outside the sample are marked slow."""
    return [
        pytest.param(*row, id=name(*row), marks=() if row in sample else pytest.mark.slow)
        for row in rows
    ]


BROKEN_TRIALS = trials(
    BROKEN,
    first_of_each(BROKEN, lambda table, broken: (table, broken.killed_by)),
    lambda table, b: f"{table.name}-{b.component.__name__}-{b.killed_by}",
)
CONTROL_TRIALS = trials(
    CONTROLS,
    first_of_each(CONTROLS, lambda fill_in, honest, test: (fill_in, honest)),
    lambda _, honest, test: f"{honest.__name__}-{test}",
)


@pytest.mark.parametrize(("table", "broken"), BROKEN_TRIALS)
def test_the_contract_detects_a_broken_component(table, broken, request):
    found = failure(table.contract_on(broken), broken.killed_by, request.getfixturevalue)
    assert found is not None, f"{broken.name} passes {broken.killed_by}"
    if not is_expected(found, broken):
        raise found


@pytest.mark.parametrize(("fill_in", "honest", "test"), CONTROL_TRIALS)
def test_an_honest_component_passes_the_same_test(fill_in, honest, test, request):
    if found := failure(fill_in(honest), test, request.getfixturevalue):
        raise found


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_test_of_a_contract_detects_a_broken_component(table):
    tests = {name.removeprefix("test_") for name in dir(table.contract) if name[:5] == "test_"}
    killers = {broken.killed_by for broken in table.broken}
    assert killers == tests


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_sample_has_a_broken_component_for_every_test_of_a_contract(table):
    sample = [param.values for param in BROKEN_TRIALS if not param.marks]
    killers = [broken.killed_by for of, broken in sample if of is table]
    assert sorted(killers) == sorted({broken.killed_by for broken in table.broken})


def test_the_sample_has_every_honest_component_once():
    sample = [param.values for param in CONTROL_TRIALS if not param.marks]
    tried = [(fill_in, honest) for fill_in, honest, _ in sample]
    assert set(tried) == {(fill_in, honest) for fill_in, honest, _ in CONTROLS}
    assert len(tried) == len(set(tried))


def test_every_contract_has_a_table():
    contracts = {
        found
        for found in (getattr(vlmkit_testing, name) for name in vlmkit_testing.__all__)
        if inspect.isclass(found) and found.__name__.endswith("Contract")
    }
    assert contracts == {table.contract for table in TABLES}


def test_no_broken_component_is_listed_twice():
    names = [(table.name, broken.name, broken.killed_by) for table, broken in BROKEN]
    assert len(names) == len(set(names))


def test_the_contracts_page_lists_all_broken_components():
    said = page.PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^## (\w+)$", said, re.MULTILINE)
    assert listed[: len(TABLES)] == [table.contract.__name__ for table in TABLES]  # then plugins'
    assert page.renewed(said, TABLES) == said, "`python -m broken` in its folder renews it"
