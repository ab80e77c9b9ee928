"""Writes the tables of ``docs/reference/contracts.md`` from the lists of broken components."""

import re
from pathlib import Path

from broken.broken import Table

PAGE = Path(__file__).parents[4] / "docs/reference/contracts.md"
HEAD = "| broken component | the promise that it breaks | killed by |\n|---|---|---|\n"
FOUND = re.compile(rf"{re.escape(HEAD)}(?:\|.*\n)*")


def rows(table: Table) -> str:
    """Return a table in Markdown."""
    lines = [
        f"| {each.name} | {each.promise} | `test_{each.killed_by}` |\n" for each in table.broken
    ]
    return "".join([HEAD, *lines])


def renewed(page: str, tables: tuple[Table, ...]) -> str:
    """Return the page with the current tables; the other text stays.

    A table ends the section that has the name of its contract.
    """
    for table in tables:
        above, heading, below = page.partition(f"\n## {table.contract.__name__}\n")
        section, next_heading, rest = below.partition("\n## ")
        words = FOUND.sub("", section).strip("\n")
        said = f"\n{words}\n\n" if words else "\n"
        page = f"{above}{heading}{said}{rows(table)}{next_heading}{rest}"
    return page
