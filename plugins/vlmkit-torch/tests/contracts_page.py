"""Writes the tables of vlmkit-torch's contracts into ``docs/reference/contracts.md``.

``python contracts_page.py`` renews them; a test fails when they are out of date.
"""

import re
from pathlib import Path

import broken_backends
import broken_readers

from vlmkit_torch.testing import TorchAttentionContract, TorchWeightsContract

PAGE = Path(__file__).parents[3] / "docs/reference/contracts.md"
HEAD = "| broken component | killed by |\n|---|---|\n"
FOUND = re.compile(rf"{re.escape(HEAD)}(?:\|.*\n)*")
TABLES = {
    TorchAttentionContract: broken_backends.DETECTED_BY,
    TorchWeightsContract: broken_readers.DETECTED_BY,
}


def renewed(page: str) -> str:
    """Return the page with the current tables; the other text stays."""
    for contract, detected_by in TABLES.items():
        above, heading, below = page.partition(f"\n## {contract.__name__}\n")
        rows = [f"| {words(kind)} | `test_{test}` |\n" for kind, test in detected_by.items()]
        page = above + heading + FOUND.sub("".join([HEAD, *rows]), below, count=1)
    return page


def words(kind: type) -> str:
    """Return the name of a class as words."""
    return re.sub(r"(?<!^)([A-Z])", lambda found: f" {found[1].lower()}", kind.__name__)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
