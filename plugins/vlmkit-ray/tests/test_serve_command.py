"""The commands of the guide, with Ray's own command line."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: nox -s ray")

import openai
from ray_cluster import ENVIRONMENT, is_up

from mock_model import wait_until

pytestmark = [pytest.mark.posix, pytest.mark.server, pytest.mark.filterwarnings("ignore")]

GUIDE = (Path(__file__).parents[3] / "docs/how-to/several-machines.md").read_text()
# A process that a shell starts in the background ignores the signal.
SERVE = """
import signal
from ray.serve.scripts import cli
signal.signal(signal.SIGINT, signal.default_int_handler)
cli()
"""
SECTION = GUIDE.partition("\n## Ray Serve\n")[2].partition("\n## ")[0]


def test_the_command_of_the_guide_serves_the_models_of_its_config(tmp_path):
    """With the mock in place of the packaged model, and without a GPU."""
    config = re.search(r"```toml\n(.*?)```", SECTION, re.DOTALL)[1]
    for written, here in (('"demo"', '"mock"'), ("num_gpus = 1", "num_cpus = 0.1")):
        assert written in config
        config = config.replace(written, here)
    (tmp_path / "vlmkit.toml").write_text(f"{config}\n[ray]\ningress_cpus = 0.1\n")
    command = re.search(r"```console\n(serve run .*)\n```", SECTION)[1].split()
    environment = os.environ | ENVIRONMENT
    serve = [sys.executable, "-c", SERVE, *command[1:]]
    with subprocess.Popen(serve, cwd=tmp_path, env=environment) as process:
        try:
            url = "http://127.0.0.1:8000/v1"
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
                wait_until(lambda: has_started(client))
                assert client.models.list().data[0].id == "mock"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def has_started(client):
    try:
        return is_up(client, "mock")
    except (openai.APIConnectionError, openai.NotFoundError):
        return False
