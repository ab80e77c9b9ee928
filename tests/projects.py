"""Writes a project of each kind of plugin, as ``vlmkit plugins new`` does, into a folder.

For ``nox -s types``, which holds all of them to mypy's strict rules at once.
"""

import sys
from pathlib import Path

from vlmkit.plugins import project
from vlmkit.plugins.kinds import KINDS


def main(folder: Path) -> None:
    for kind in KINDS:
        name = f"my-{kind.name.replace('_', '-')}"
        project.write(kind, folder / kind.name, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
