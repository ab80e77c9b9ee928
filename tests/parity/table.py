"""Prints the parity table: ``cd tests && python -m parity.table [NAME ...]``.

For each family, it counts how many of four requests get exactly the tokens of ``generate``. It also
shows the largest difference of logits in float32. Prompts are computed in chunks and decoded in a
batch.
"""

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers

import zoo
from parity import runner


def rows(names: Iterable[str]) -> Iterable[str]:
    """Yield the table, line by line, as Markdown."""
    yield "| family | transformers | kind | equal answers | largest difference of logits |"
    yield "|---|---|---|---|---|"
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            saved = zoo.save(name, Path(folder))
            outcome = runner.outcome(
                name, saved, runner.expected(name, saved, runner.requests(name))
            )
        kind = "text" if name in zoo.NAMES_TEXT else "vision"
        yield (
            f"| {name} | {transformers.__version__} | {kind} "
            f"| {outcome.num_equal}/{outcome.num_requests} | {outcome.difference:.0e} |"
        )


def main() -> None:
    """Print the table of the families that were named, or of all."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    vision = (*zoo.NAMES_VISION, *zoo.NAMES_VARIANTS, *zoo.NAMES_MORE)
    vision += (*zoo.NAMES_OTHERS, *zoo.NAMES_THINKERS)
    for row in rows(sys.argv[1:] or (*vision, *zoo.NAMES_TEXT)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
