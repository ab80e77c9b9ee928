"""``vlmkit serve`` in its own process, with monitors."""

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

CONFIG = """
{more}

[monitors]
use = {monitors}

[[models]]
model = "mock"

[[models]]
model = "mock"
name = "other"
load = "use"
memory_bytes = 1000

[proposer]
use = "ngram"
"""


@dataclass
class MonitoredServer:
    """A listening server."""

    url: str
    http: httpx2.Client
    process: "subprocess.Popen[bytes]"

    def ask(self, text: str = "hello", *, model: str = "mock", **fields: Any) -> httpx2.Response:
        body = {"model": model, "messages": [{"role": "user", "content": text}]} | fields
        return self.http.post(f"{self.url}/v1/chat/completions", json=body)

    def samples(self, **options: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Scrape the server; return every series."""
        answer = self.http.get(f"{self.url}/metrics", **options)
        assert answer.status_code == 200, answer.text
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples().get((name, tuple(sorted(labels.items()))))


@contextmanager
def running_server(
    folder: Path,
    monitors: tuple[str, ...] = ("prometheus",),
    more: str = "",
    environ: Mapping[str, str] | None = None,
) -> Iterator[MonitoredServer]:
    config, log = folder / "vlmkit.toml", folder / "log"
    config.write_text(CONFIG.format(monitors=json.dumps(list(monitors)), more=more))
    command = [sys.executable, "-m", "vlmkit", "serve", "--port", "0", "--config", str(config)]
    env = {**os.environ, **(environ or {})}
    with (
        log.open("wb") as log_file,
        subprocess.Popen(command, stderr=log_file, env=env) as process,
        httpx2.Client(trust_env=False, timeout=300) as http,
    ):
        try:
            while not re.search(r"'mock' is ready\n", log.read_text()):
                assert process.poll() is None, log.read_text()
                time.sleep(0.02)
            url = re.search(r"listening on (\S+)", log.read_text())
            assert url is not None
            yield MonitoredServer(url[1], http, process)
            process.send_signal(signal.SIGTERM)
            process.wait(300)
        finally:
            process.kill()
    assert process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()


def scripted(**script: Any) -> str:
    return json.dumps({"mock": script})


def image(width: int, height: int) -> dict[str, Any]:
    content = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(content, "PNG")
    url = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def messages_with(*sizes: tuple[int, int]) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": "hello"}, *(image(*size) for size in sizes)]
    return [{"role": "user", "content": parts}]


def eventually(is_true: Any, timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
