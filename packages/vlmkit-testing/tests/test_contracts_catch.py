"""A contract is worth what it catches: each broken component is killed by the test that is named.

And only it is broken: the same test passes on the honest component that it was made from.
"""

import inspect
import re

import pytest
from broken import page
from broken.tables import TABLES
from broken.trial import failure, is_expected

import vlmkit_testing

BROKEN = [(table, broken) for table in TABLES for broken in table.broken]
CONTROLS = dict.fromkeys(table.control(broken) for table, broken in BROKEN)


@pytest.mark.parametrize(
    ("table", "broken"),
    BROKEN,
    ids=[f"{table.name}-{b.component.__name__}-{b.killed_by}" for table, b in BROKEN],
)
def test_a_broken_component_is_killed(table, broken, request):
    found = failure(table.contract_on(broken), broken.killed_by, request.getfixturevalue)
    assert found is not None, f"{broken.name} passes {broken.killed_by}"
    if not is_expected(found, broken):
        raise found


@pytest.mark.parametrize(
    ("fill_in", "honest", "test"),
    CONTROLS,
    ids=[f"{honest.__name__}-{test}" for _, honest, test in CONTROLS],
)
def test_the_same_test_passes_on_an_honest_component(fill_in, honest, test, request):
    if found := failure(fill_in(honest), test, request.getfixturevalue):
        raise found


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_test_of_a_contract_kills_something(table):
    tests = {name.removeprefix("test_") for name in dir(table.contract) if name[:5] == "test_"}
    killers = {broken.killed_by for broken in table.broken}
    assert killers == tests


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


def test_the_page_of_contracts_lists_them():
    said = page.PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", said, re.MULTILINE) == [t.contract.__name__ for t in TABLES]
    assert page.renewed(said, TABLES) == said, "`python -m broken` in its folder renews it"
