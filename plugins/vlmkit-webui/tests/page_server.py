"""``vlmkit serve mock`` in a process of its own, which tests may end and start again."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import httpx2

KEY = "a-key-of-at-least-sixteen-characters"
TIMEOUT_S = 300.0


class PageServer:
    """A server process, its address and its log.

    Args:
        folder: where it runs.
        options: further arguments of the command.
        has_key: whether it needs :data:`KEY`.

    Attributes:
        port: its port; 0 takes a free one at the first start.
    """

    def __init__(self, folder: Path, options: Sequence[str] = (), *, has_key: bool = False) -> None:
        self.folder, self.has_key, self.port = folder, has_key, 0
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def start(self) -> None:
        """Start the server, at the same port as before, and wait until its model is ready."""
        command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", str(self.port)]
        environ = os.environ | ({"VLMKIT_SERVER__API_KEY": KEY} if self.has_key else {})
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *self._options], cwd=self.folder, env=environ, stderr=log
            )
        self.wait(lambda: "is ready" in self.log)
        found = re.search(r"listening on http://\S+:(\d+)\n", self.log)
        assert found
        self.port = int(found[1])

    def stop(self) -> None:
        """End the server at once, with all of its connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait(self, is_true: Callable[[], Any]) -> None:
        """Wait until something is true of the running server."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not is_true():
            assert self._process is not None
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline_s, self.log
            time.sleep(0.02)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with httpx2.Client(trust_env=False, timeout=TIMEOUT_S) as client:
            return client.get(f"{self.url}{path}", headers=named)
