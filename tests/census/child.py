"""The process of one family; it imports heavy libraries only when needed."""

import logging
import resource
from collections.abc import Sequence
from contextlib import redirect_stderr
from multiprocessing.connection import Connection
from pathlib import Path

CPU_S = 240
MEMORY_BYTES = 8 * 2**30


def run(
    name: str,
    engines: Sequence[str],
    folder: Path,
    records: Path,
    writer: Connection,
    *,
    exports: bool,
) -> None:
    """Send the results of a family, within limits; output of libraries goes to files."""
    from census.trial import quietly, tried

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    logging.basicConfig(filename=records / f"{name}.log", filemode="w", level=logging.INFO)
    with (records / f"{name}.out").open("w") as said, redirect_stderr(said), quietly():
        writer.send(tried(name, engines, folder, exports=exports))
