"""The page "From one process to a fleet" works as written, at free ports."""

import base64
import contextlib
import io
import re
import shlex
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import msgspec
import numpy as np
import openai
import PIL.Image
import pytest

from mock_model import wait_until
from vlmkit_grpc.addresses import worker_reference
from vlmkit_grpc.settings import (
    EncoderSettings,
    GrpcSettings,
    RemoteEncoderSettings,
    WorkerSettings,
)

pytestmark = [pytest.mark.posix, pytest.mark.server]

PAGE = (Path(__file__).parents[3] / "docs/how-to/several-machines.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
CONFIGS = [tomllib.loads(block) for block in TOML]


def free_port():
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        return port.getsockname()[1]


def test_the_commands_start_a_worker_and_a_gateway_that_answers(tmp_path):
    pytest.importorskip("vlmkit_demo")
    pytest.importorskip("vlmkit_server")
    ports = {"50051": str(free_port()), "8000": str(free_port())}
    start_worker, start_gateway, ask = [
        [sys.executable, "-m", *shlex.split(re.sub("50051|8000", lambda m: ports[m[0]], line))]
        for line in COMMANDS[1:4]
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


def test_the_commands_start_an_encoder_and_a_server_that_sends_images_to_it(tmp_path):
    pytest.importorskip("vlmkit_demo")
    pytest.importorskip("vlmkit_server")
    ports = {"50052": str(free_port()), "8001": str(free_port())}

    def with_free_ports(text):
        return re.sub("50052|8001", lambda found: ports[found[0]], text)

    start_encoder, start_server = [
        [sys.executable, "-m", *shlex.split(with_free_ports(line))]
        for line in COMMANDS
        if "encoder" in line
    ]
    (config,) = [block for block in TOML if 'use = "remote"' in block]
    (tmp_path / "encoders.toml").write_text(with_free_ports(config))
    with (
        subprocess.Popen(start_encoder) as encoder,
        subprocess.Popen(start_server, cwd=tmp_path) as server,
    ):
        try:
            base_url = f"http://127.0.0.1:{ports['8001']}/v1"
            with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                wait_until(lambda: is_up(client))
                wait_until(lambda: counted(ports["8001"], ask_about_a_picture(client)))
        finally:
            for process in (server, encoder):
                process.terminate()
        assert server.wait(120) == 0
        assert encoder.wait(120) == 0


def ask_about_a_picture(client):
    """Ask about an image of other pixels at each call."""
    file = io.BytesIO()
    pixels = np.random.default_rng().integers(0, 256, (90, 120, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    content = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    with contextlib.suppress(openai.InternalServerError):  # it still loads the model
        client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": content}], max_tokens=4
        )


def counted(port, _):
    """Return the number of images that were encoded remotely."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.search(r'vlmkit_remote_encodings_total\{model="demo"\} (\S+)', text)
    return found and float(found[1])


def is_up(client):
    try:
        return bool(client.models.list().data)
    except openai.APIConnectionError:
        return False


def test_the_configs_have_known_settings():
    of_worker, of_gateway, of_encoders = CONFIGS[:3]
    remote = {k: v for k, v in of_encoders["media_encoder"].items() if k != "use"}
    assert msgspec.convert(remote, RemoteEncoderSettings).min_pixels == 0
    assert msgspec.convert(of_worker["worker"], WorkerSettings).secret_file
    settings = {name: value for name, value in of_gateway["runner"].items() if name != "use"}
    assert msgspec.convert(settings, GrpcSettings).encrypts
    assert worker_reference(of_gateway["model"]).model == of_worker["model"]


@pytest.mark.parametrize(
    "settings", [WorkerSettings, GrpcSettings, EncoderSettings, RemoteEncoderSettings]
)
def test_the_page_of_the_distribution_lists_every_setting(settings):
    page = (Path(__file__).parents[1] / "README.md").read_text()
    assert all(f"`{name}`" in page for name in settings.__struct_fields__)
