"""Runners that the config of a server names, or that own the scheme of a model's reference."""

import asyncio
import os
import subprocess
import sys

import openai
from running_server import chat, eventually, running

from vlmkit.config import Component, Config, ModelEntry
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.interfaces.observer import Observer
from vlmkit.settings.plugins import PluginSettings
from vlmkit_server.commands.components import model_spec
from vlmkit_server.interfaces.monitor import Monitor

FAR = """
import msgspec
import vlmkit
from vlmkit.errors import ConfigError
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer

VLMKIT_API = (1, 0)


def build(context):
    return vlmkit.Pipeline(name=context.name, tokenizer=MockTokenizer(), engine=MockEngine())


def examine(context):
    if "down" in context.reference:
        raise ConfigError("the key for the other server is missing")
    return "by a far server"


@vlmkit.hookimpl
def vlmkit_register_runners(registry):
    registry.add("far", build, schemes=("far",), examine=examine)
"""


class Counting(Monitor):
    """Counts the requests of each observer."""

    def __init__(self):
        self.counts = []

    def observer(self, model):
        counts, place = self.counts, len(self.counts)
        counts.append(0)

        class Count(Observer):
            def finished(self, request, end, at_s):
                assert request.model == model
                counts[place] += 1

        return Count()


def test_replicas_of_the_config_serve_and_are_observed_by_monitors():
    monitor, config = Counting(), Config(runner=Component(use="replicas"))
    entry, plugins = ModelEntry(model="mock"), load_plugins(PluginSettings())
    spec = model_spec(entry, config, plugins, {"counting": monitor})
    with running({"mock": spec}, monitors={"counting": monitor}) as server:
        assert eventually(lambda: server.get("/readyz").status_code == 200)

        async def ask():
            base = f"{server.url}/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
                asked = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}
                create = client.chat.completions.create
                return await asyncio.gather(*(create(**asked) for _ in range(16)))

        answers = asyncio.run(ask())
        assert {answer.choices[0].message.content for answer in answers} == {"hello"}
        assert eventually(lambda: sum(monitor.counts) == 16)
        assert len(monitor.counts) == 2


def test_a_model_of_a_scheme_is_served_without_files(tmp_path):
    (tmp_path / "far.py").write_text(FAR)
    config = Config(plugins=PluginSettings(files=(str(tmp_path / "far.py"),)))
    spec = model_spec(ModelEntry(model="far://host/tiny"), config, load_plugins(config.plugins))
    assert spec.weigh is not None
    assert spec.weigh() == 0
    with running({"tiny": spec}) as server:
        assert eventually(lambda: server.get("/readyz").status_code == 200)
        answer = server.post(chat("hello", model="tiny")).json()
        assert answer["choices"][0]["message"]["content"] == "hello"


def run(tmp_path, *words):
    (tmp_path / "far.py").write_text(FAR)
    (tmp_path / "far.toml").write_text('plugins = ["far.py"]')
    command = [sys.executable, "-m", "vlmkit", *words, "--config", "far.toml"]
    others = {n: v for n, v in os.environ.items() if not n.startswith("VLMKIT_RUNNER__")}
    return subprocess.run(
        command, cwd=tmp_path, env=others, capture_output=True, text=True, check=False
    )


def test_a_check_of_the_server_asks_the_runner_of_a_scheme(tmp_path):
    good = run(tmp_path, "serve", "far://host/tiny", "--check")
    assert good.returncode == 0, good.stderr
    assert good.stdout.startswith("valid: ")
    bad = run(tmp_path, "serve", "far://down/tiny", "--check")
    assert bad.returncode != 0
    assert "the key for the other server is missing" in bad.stderr


def test_the_doctor_describes_a_model_of_a_scheme(tmp_path):
    good = run(tmp_path, "doctor", "far://user:secret@host/tiny")
    assert good.returncode == 0, good.stderr
    assert "model tiny (no family)" in good.stdout
    assert "far" in good.stdout
    assert "chosen: by a far server" in good.stdout
    assert "secret" not in good.stdout + good.stderr
    bad = run(tmp_path, "doctor", "far://down/tiny")
    assert bad.returncode == 1
    assert "refuses: the key for the other server is missing" in bad.stdout


def test_a_command_that_needs_files_names_the_runner(tmp_path):
    done = run(tmp_path, "models", "info", "far://host/tiny")
    assert done.returncode == 1
    assert "has no files: runner 'far' from" in done.stderr


def test_ask_takes_a_reference_of_a_runner(tmp_path):
    done = run(tmp_path, "ask", "far://host/tiny", "hello")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
