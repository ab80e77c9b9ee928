"""Adds this folder to the import path, and runs ``vlmkit mcp`` as a process."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

sys.path.append(str(Path(__file__).parent))

from mcp_client import Start, SyncClient, connected


@pytest.fixture(scope="session")
def start() -> Start:
    """Return a function that starts ``vlmkit mcp`` and returns a connected client."""

    @contextmanager
    def start(
        *arguments: str, mode: str = "auto", log: Path | None = None, **environ: str
    ) -> Iterator[SyncClient]:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-m", "vlmkit", "mcp", *arguments],
            env=dict(os.environ) | environ,
        )
        with (
            Path(log or os.devnull).open("w") as log_file,
            connected(stdio_client(parameters, log_file), mode) as client,
        ):
            yield client

    return start
