"""The page "From one process to a fleet" works as written, at free ports."""

import re
import shlex
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import openai
import pytest

from mock_model import wait_until
from vlmkit_grpc.addresses import worker_reference
from vlmkit_grpc.settings import GrpcSettings, WorkerSettings

pytestmark = [pytest.mark.posix, pytest.mark.server]

PAGE = (Path(__file__).parents[3] / "docs/how-to/several-machines.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
CONFIGS = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]


def free_port():
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        return port.getsockname()[1]


def test_the_commands_start_a_worker_and_a_gateway_that_answers(tmp_path):
    pytest.importorskip("vlmkit_demo")
    pytest.importorskip("vlmkit_server")
    ports = {"50051": str(free_port()), "8000": str(free_port())}
    _, start_worker, start_gateway, ask = [
        [sys.executable, "-m", *shlex.split(re.sub("50051|8000", lambda m: ports[m[0]], line))]
        for line in COMMANDS
    ]
    with subprocess.Popen(start_worker) as worker, subprocess.Popen(start_gateway) as gateway:
        try:
            asked = subprocess.run(ask, capture_output=True, text=True, timeout=300, check=True)
            assert asked.stdout.strip()
            base_url = f"http://127.0.0.1:{ports['8000']}/v1"
            with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                wait_until(lambda: is_up(client))
                assert [model.id for model in client.models.list()] == ["demo"]
                question = {"role": "user", "content": "Where is the red circle?"}
                answer = client.chat.completions.create(
                    model="demo", messages=[question], temperature=0
                )
                assert answer.choices[0].message.content.strip() == asked.stdout.strip()
        finally:
            for process in (gateway, worker):
                process.terminate()
        assert gateway.wait(120) == 0
        assert worker.wait(120) == 0


def is_up(client):
    try:
        return bool(client.models.list().data)
    except openai.APIConnectionError:
        return False


def test_the_configs_have_known_settings():
    of_worker, of_gateway = CONFIGS
    assert msgspec.convert(of_worker["worker"], WorkerSettings).secret_file
    settings = {name: value for name, value in of_gateway["runner"].items() if name != "use"}
    assert msgspec.convert(settings, GrpcSettings).encrypts
    assert worker_reference(of_gateway["model"]).model == of_worker["model"]


@pytest.mark.parametrize("settings", [WorkerSettings, GrpcSettings])
def test_the_page_of_the_distribution_lists_every_setting(settings):
    page = (Path(__file__).parents[1] / "README.md").read_text()
    assert all(f"`{name}`" in page for name in settings.__struct_fields__)
