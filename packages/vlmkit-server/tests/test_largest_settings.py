"""Integer settings have upper bounds, and a server with all of them at their bounds works."""

import signal
import sys
from pathlib import Path

import pytest
from running_server import chat, eventually, process

from vlmkit.config.plugin_loading import load_plugins
from vlmkit.config.schema import json_schema
from vlmkit.settings.plugins import PluginSettings

OTHERWISE = {
    "server.port": 0,
    "server.health_port": 0,
    "server.num_renderers": 1,
    "server.drain_timeout_s": 5,
    "server.data.folder": '"data"',
    "proposer.use": '"ngram"',
    "engine.block_tokens": 16,
}
"""Settings that cannot be at their bounds: ports, and numbers of processes."""

SCRIPT = ("engine.tokens", "engine.fail_at_token", "engine.crash_at_token")
MAX_RESIDENT_BYTES = 600 * 2**20
MAX_NUMBER = 2**53 - 1  # the largest integer that JSON parsers agree on


def whole_numbers(schema, path=""):
    """Yield the path and the schema of each integer below a section."""
    kinds = schema.get("type", ())
    if "integer" in ([kinds] if isinstance(kinds, str) else kinds):
        yield path, schema
    for form in schema.get("anyOf", ()):
        title = form.get("title")
        yield from whole_numbers(form, f"{path}<{title}>" if title else path)
    for name, inner in schema.get("properties", {}).items():
        yield from whole_numbers(inner, f"{path}.{name}" if path else name)


@pytest.fixture(scope="module")
def numbers():
    schema = json_schema(load_plugins(PluginSettings(), environ={}))
    return dict(whole_numbers(schema))


def test_every_integer_setting_has_an_upper_bound(numbers):
    assert len(numbers) > 50
    assert not [path for path, each in numbers.items() if "maximum" not in each]
    assert max(each["maximum"] for each in numbers.values()) <= MAX_NUMBER


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and signals")
def test_a_server_with_all_integer_settings_at_their_bounds_works(numbers, tmp_path):
    given = {}
    for path, each in numbers.items():
        name = path.replace("<mock>", "").replace("<continuous>", "").replace("<ngram>", "")
        if "<" not in name and not name.startswith("media_loaders") and name not in SCRIPT:
            given[name] = each["maximum"]
    assert given["pipeline.num_workers"] == 1024
    given |= OTHERWISE
    assigned = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", *assigned]
    with process(command, tmp_path) as server:
        assert eventually(lambda: server.status() == 200), server.log.read_text()
        answer = server.post(chat("Hello", max_tokens=3))
        assert answer.status_code == 200, answer.text
        pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
        assert pages * 4096 < MAX_RESIDENT_BYTES
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(300) == 0
        assert "Traceback" not in server.log.read_text()
