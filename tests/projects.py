"""Writes a project of each kind of plugin, as ``vlmkit plugins new`` does, into a folder.

``nox -s types`` checks all of them by mypy's strict rules in one run.
"""

import sys
from pathlib import Path

from vlmkit.plugins.kinds import KINDS
from vlmkit_server.plugin import VLMKIT_KINDS
from vlmkit_testing import project
from vlmkit_torch.interfaces import kinds


def main(folder: Path) -> None:
    for kind in (*KINDS, *VLMKIT_KINDS, *kinds.KINDS):
        name = f"my-{kind.name.replace('_', '-')}"
        project.write(kind, folder / kind.name, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
