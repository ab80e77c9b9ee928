"""The command with several models, as its guide describes it; and memory after unloading."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import openai
import pytest
from running_server import chat, eventually, mock_pipeline, process, running

from vlmkit_server.fleet.model_spec import ModelSpec
from vlmkit_server.settings.fleet import FleetSettings

GUIDE = (Path(__file__).parents[3] / "docs/how-to/serve.md").read_text()
MIB = 2**20


def guides_config():
    """Return the guide's config for several models, with mocks for models that are absent here."""
    blocks = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    (config,) = [block for block in blocks if "./checkpoints/large" in block]
    mocks = config.replace('"./checkpoints/large"', '"mock"').replace('"demo"', '"mock"')
    assert mocks.count('"mock"') == 2
    return mocks + "manage = true\n"


@pytest.mark.posix
def test_the_config_and_commands_of_the_guide_work(tmp_path):
    (tmp_path / "vlmkit.toml").write_text(guides_config())
    arguments = ["serve", "--config", "vlmkit.toml", "--port", "0"]
    with process([sys.executable, "-m", "vlmkit", *arguments], tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        states = {model.id: model.state for model in server.client.models.list()}
        assert states == {"mock": "ready", "default": "ready", "large": "unloaded"}
        for name in ("default", "large"):
            stream = list(server.stream("hello", name))
            assert {chunk.model for chunk in stream} == {name}
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "hello"
        for path, body in re.findall(
            r"^curl \S+(/v1/models/\w+) .* -d '(.*)'$", GUIDE, re.MULTILINE
        ):
            headers = {"content-type": "application/json"}
            answer = server.http.post(server.url + path, content=body, headers=headers)
            assert answer.json()["state"] == {"load": "ready", "unload": "unloaded"}[path[11:]]
        with pytest.raises(openai.NotFoundError):
            server.stream("hello", "./checkpoints/large")
        server.process.terminate()
        assert server.process.wait(300) == 0
    log = server.log.read_text()
    assert log.count("loading 'large'") == 1
    assert "model 'large' unloaded" in log


@pytest.mark.posix
def test_a_model_over_the_budget_is_refused_by_name_before_the_port_opens(tmp_path):
    config = guides_config().replace("16_000_000_000", "30_000_000_000")
    (tmp_path / "vlmkit.toml").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "serve", "--config", "vlmkit.toml", "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "model 'large' takes 30000000000 bytes, more than server.fleet" in done.stderr
    assert "listening" not in done.stderr


def resident_bytes():
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much this process has")
def test_memory_of_an_unloaded_model_is_returned_to_the_system():
    size = 256 * MIB

    def load():
        pipeline = mock_pipeline()
        pipeline.weights = np.ones(size, np.uint8)
        pipeline.itself = pipeline  # a reference cycle, as in modules that refer to their parents
        return pipeline

    def fail():
        weights = np.ones(size, np.uint8)
        raise ValueError(f"of {len(weights)} bytes the last one is wrong")

    models = {"large": ModelSpec(load=load), "broken": ModelSpec(load=fail)}
    with running(models, fleet=FleetSettings(load="use", manage=True)) as server:
        # The first unloading also returns what earlier tests of this process left.
        assert server.post(chat() | {"model": "large"}).status_code == 200
        assert server.post({"model": "large"}, "/v1/models/unload").status_code == 200
        before = resident_bytes()
        for _ in range(3):
            assert server.post(chat() | {"model": "large"}).status_code == 200
            assert resident_bytes() > before + size * 3 / 4
            answer = server.post({"model": "large"}, "/v1/models/unload")
            assert answer.json()["state"] == "unloaded"
            assert resident_bytes() < before + size / 4
        assert server.post(chat() | {"model": "broken"}).status_code == 503
        assert resident_bytes() < before + size / 4
