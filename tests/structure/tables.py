"""The tables: which measures stand side by side, and how they are written."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from structure import imports, sizes, writing
from structure.found import Areas
from structure.imports import Imports
from structure.project import Project

Measure = Callable[[Project, Imports], Areas]
Numbers = dict[str, dict[str, dict[str, float]]]
"""The number of each measure by table and area, as JSON keeps it."""


@dataclass(frozen=True)
class Table:
    """Measures that have the same areas.

    Attributes:
        name: its heading.
        measures: a column each, by name.
    """

    name: str
    measures: Mapping[str, Measure]


TABLES = (
    Table(
        "imports",
        {
            "units": imports.units,
            "imports": imports.edges,
            "layers": imports.layers,
            "upward": imports.upward,
            "cycles": imports.cycles,
            "unused-kit": imports.unused_kit,
        },
    ),
    Table(
        "distributions",
        {
            "distribution-lines": sizes.distribution_lines,
            "distribution-code": sizes.distribution_code_lines,
        },
    ),
    Table(
        "sources",
        {
            "lines": sizes.lines,
            "code": sizes.code_lines,
            "small-modules": sizes.small_modules,
            "repeated-runs": sizes.repeated_runs,
            "long-classes": sizes.long_classes,
            "constructors": sizes.constructors,
            "median": sizes.function_median,
            "p99": sizes.function_p99,
        },
    ),
    Table(
        "prose",
        {
            "long-public": writing.long_public,
            "long-private": writing.long_private,
            "stacked-public": writing.stacked_public,
            "stacked-private": writing.stacked_private,
            "messages": writing.messages,
            "long-pages": writing.long_pages,
            "stacked-pages": writing.stacked_pages,
            "retired-names": writing.retired_identifiers,
            "retired-docs": writing.retired_in_docs,
        },
    ),
)

MEASURES = {name: measure for table in TABLES for name, measure in table.measures.items()}


def measure(project: Project, tables: Iterable[Table] = TABLES) -> Numbers:
    """Return every number of the tables."""
    graph = Imports(project)
    numbers: Numbers = {}
    for table in tables:
        areas = numbers[table.name] = {}
        for name, function in table.measures.items():
            for area, found in function(project, graph).items():
                areas.setdefault(area, {})[name] = found.number
    return numbers


def written(numbers: Numbers, before: Numbers | None = None) -> str:
    """Return the tables in Markdown; with earlier numbers, cells that differ show both."""
    return "\n\n".join(_table(table, numbers, before) for table in TABLES) + "\n"


def _table(table: Table, numbers: Numbers, before: Numbers | None) -> str:
    new, old = numbers[table.name], {} if before is None else before.get(table.name, {})
    rows = [["", *table.measures]]
    rows += [["---", *("---:" for _ in table.measures)]]
    for area in sorted({*new, *old}, key=lambda area: (area == "all", area)):
        cells = [
            _cell(old.get(area, {}).get(name), new.get(area, {}).get(name), before is not None)
            for name in table.measures
        ]
        rows.append([area, *cells])
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"### {table.name.capitalize()}\n\n{lines}"


def _cell(old: float | None, new: float | None, compares: bool) -> str:
    if not compares or old == new:
        return _number(new)
    return f"{_number(old)} → {_number(new)}"


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:,g}" if number < 1e6 else f"{number:,.0f}"
