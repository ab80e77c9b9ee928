"""A server with keys of several tenants, to test what tenants can do to each other."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from running_server import Process, Running, eventually, process, running

from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import add_line


def headers_of(folder: Path, *names: str, scopes: tuple[Any, ...] = ("chat",)) -> list[Any]:
    """Create a key for each name, and return the headers that send it."""
    sent = []
    for name in names:
        key, secret = new_key(name, scopes, tenant=name)
        add_line(folder / "keys.jsonl", key)
        sent.append({"authorization": f"Bearer {secret}"})
    return sent


@contextmanager
def thread_with_keys(folder: Path, models: Any = None, **settings: Any) -> Iterator[Running]:
    """Run a server in a thread, with the keys of a folder."""
    with running(models, keys_file=str(folder / "keys.jsonl"), **settings) as server:
        yield server


@contextmanager
def process_with_keys(folder: Path, **settings: Any) -> Iterator[Process]:
    """Run a server process with the keys of a folder.

    Two underscores in a setting stand for a dot.
    """
    given = {"keys_file": str(folder / "keys.jsonl"), **settings}
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    for name, value in given.items():
        command += ["--set", f"server.{name.replace('__', '.')}={json.dumps(value)}"]
    with process(command, folder) as server:
        assert eventually(lambda: "is ready" in server.log.read_text())
        yield server
