"""The most that each part may have of what is hard to read; the numbers can only fall."""

import tomllib
from pathlib import Path

from structure import tables
from structure.project import Project

FILE = Path(__file__).parents[1] / "prose_ceilings.toml"
PROSE = next(table for table in tables.TABLES if table.name == "prose")
HEAD = """\
# The most of each kind that each part may have, as `nox -s structure -- --record` found it.
# A number that fell is written anew; none may rise. `nox -s structure -- --list NAME` tells which.
"""

Ceilings = dict[str, dict[str, int]]
"""The number of each measure, by part."""


def count(project: Project) -> Ceilings:
    """Return the numbers of a checkout; those that are zero are left out."""
    areas = tables.measure(project, [PROSE])["prose"]
    return {
        part: {name: int(number) for name, number in sorted(found.items()) if number}
        for part, found in sorted(areas.items())
        if part != "all"
    }


def read() -> Ceilings:
    """Return the recorded numbers."""
    return tomllib.loads(FILE.read_text())


def write(found: Ceilings) -> None:
    """Record numbers."""
    parts = [
        "\n".join([f"[{part}]", *(f"{name} = {number}" for name, number in numbers.items())])
        for part, numbers in found.items()
    ]
    FILE.write_text("\n".join([HEAD, "\n\n".join(parts), ""]))


def risen(found: Ceilings, recorded: Ceilings) -> list[str]:
    """Return a line for each number above its ceiling; what has none may have nothing."""
    return [
        f"{part}: {name} rose from {_of(recorded, part, name)} to {number}"
        for part, numbers in found.items()
        for name, number in numbers.items()
        if number > _of(recorded, part, name)
    ]


def fallen(found: Ceilings, recorded: Ceilings) -> list[str]:
    """Return a line for each number below its ceiling."""
    return [
        f"{part}: {name} fell from {number} to {_of(found, part, name)}"
        for part, numbers in recorded.items()
        for name, number in numbers.items()
        if _of(found, part, name) < number
    ]


def _of(numbers: Ceilings, part: str, name: str) -> int:
    return numbers.get(part, {}).get(name, 0)
