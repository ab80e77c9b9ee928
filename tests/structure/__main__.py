"""Prints the tables; ``--list NAME`` prints what one measure counts."""

import argparse
import json
from pathlib import Path
from typing import Any

from structure import ceilings, tables
from structure.imports import Imports
from structure.project import Project

HERE = Path(__file__).parent


def main() -> None:
    """Measure a checkout and print what was asked for."""
    asked = _arguments()
    project = Project(asked.root)
    if asked.list:
        _print_items(project, asked.list)
    elif asked.record:
        ceilings.write(ceilings.count(project))
    else:
        numbers = tables.measure(project)
        before = json.loads(asked.against.read_text()) if asked.against else None
        print(tables.written(numbers, before), end="")
        if asked.json:
            asked.json.write_text(json.dumps(numbers, indent=1) + "\n")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(prog="structure", description=__doc__)
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="checkout to measure")
    parser.add_argument("--list", metavar="NAME", choices=tables.MEASURES, help="print its items")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the numbers")
    parser.add_argument("--against", type=Path, metavar="FILE", help="show saved numbers as before")
    parser.add_argument("--record", action="store_true", help="write the ceilings of prose")
    return parser.parse_args()


def _print_items(project: Project, name: str) -> None:
    measure = tables.MEASURES[name]
    print(measure.__doc__.partition("\n")[0] if measure.__doc__ else name)
    for area, found in measure(project, Imports(project)).items():
        if area == "all":
            continue
        print(f"\n{area}: {found.number:g}")
        for item in found.items:
            print(f"  {item}")


if __name__ == "__main__":
    main()
