"""``vlmkit plugins check`` runs the contracts of installed providers and reports failures."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import spelling
from vlmkit.config import Config
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.errors import PluginError
from vlmkit.kit.install_command import install_command
from vlmkit.settings.plugins import PluginSettings
from vlmkit_testing.verify import contracts

BROKEN = """
from typing import Protocol

from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.kinds import Kind
from vlmkit.interfaces.observer import Observer

VLMKIT_API = (1, 0)

class Codec(Protocol):
    def decode(self, data: bytes) -> str: ...

CODEC = Kind("codec", Codec, "by name", "what decodes", "codec_contract:CodecContract")
VLMKIT_KINDS = (CODEC,)

class Leaks(Observer):
    def __init__(self):
        self.requests = []

    def accepted(self, request, at_s):
        self.requests.append(request)

class Latin:
    def decode(self, data):
        return data.decode("latin-1")

@hookimpl
def vlmkit_register_observers(registry):
    registry.add("odd", lambda context: Leaks())

@hookimpl
def vlmkit_register_codecs(registry):
    registry.add("odd", lambda context: Latin())
"""
CONTRACT = """
import pytest

class CodecContract:
    def test_letters_come_back(self):
        assert self.make().decode(b"a") == "a"

    def test_umlauts_come_back(self):
        assert self.make().decode(bytes([0xC3, 0xA4])) == "\\u00e4"

    def test_nothing_is_asked_of_emoji(self):
        pytest.skip("they are not claimed")
"""


PICKY = """
from spelling import SpellingCompiler
from vlmkit.plugins.hookspecs import hookimpl

VLMKIT_API = (1, 0)

@hookimpl
def vlmkit_register_tokenizers(registry):
    registry.add("picky", lambda context: 1 / 0, cannot_serve=lambda _: "it serves only others")

@hookimpl
def vlmkit_register_constraints(registry):
    registry.add("picky", lambda context: SpellingCompiler(context.words))
"""


def checked(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command in a process; return its exit code and its report."""
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "plugins", "check", *arguments, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_mock_keeps_its_contracts_on_its_model(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not one of ours')")
    code, report = checked(tmp_path, "mock", "mock")
    assert (code, report["failed"]) == (0, 0)
    kinds = {f["kind"] for f in report["findings"] if f["outcome"] == "held"}
    assert kinds >= {"tokenizer", "media_encoder", "engine"}
    assert all(f["reason"] for f in report["findings"] if f["outcome"] == "skipped")


def test_contracts_that_need_a_model_are_skipped_without_one(tmp_path: Path) -> None:
    _, report = checked(tmp_path, "mock")
    reasons = {f["kind"]: f["reason"] for f in report["findings"] if f["outcome"] == "skipped"}
    named = "name a model: vlmkit plugins check NAME MODEL"
    assert {reasons[kind] for kind in ("tokenizer", "media_encoder", "engine")} == {named}


def test_tests_of_unclaimed_capabilities_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(PICKY)
    shutil.copy(Path(spelling.__file__), tmp_path)
    code, report = checked(tmp_path, "picky", "mock", "--set", 'plugins=["picky.py"]')
    assert (code, report["failed"]) == (0, 0)
    reasons = {(f["kind"], f["reason"]) for f in report["findings"] if f["outcome"] == "skipped"}
    assert reasons == {
        ("tokenizer", "it serves only others"),
        ("constraint", "constraints of this form are not taken"),
        ("constraint", "this compiler declares no support of schemas"),
    }
    held = {f["sentence"] for f in report["findings"] if f["outcome"] == "held"}
    assert "every text of a choice is possible and nothing else" in held


def test_broken_promises_are_listed_for_built_in_and_own_kinds(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(BROKEN)
    (tmp_path / "codec_contract.py").write_text(CONTRACT)
    code, report = checked(tmp_path, "odd", "--set", 'plugins=["odd.py"]')
    assert code == 1
    found = {(f["kind"], f["sentence"]): f for f in report["findings"] if f["outcome"] != "held"}
    assert set(found) == {
        ("observer", "a finished request is released"),
        ("observer", "memory does not grow with the requests"),
        ("codec", "umlauts come back"),
        ("codec", "nothing is asked of emoji"),
    }
    assert "'\xc3\xa4' == '\xe4'" in found["codec", "umlauts come back"]["reason"]
    assert found["codec", "nothing is asked of emoji"]["reason"] == "they are not claimed"
    assert report["held"] > 1


def test_a_failure_shows_the_promise_and_its_documentation(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(BROKEN)
    (tmp_path / "codec_contract.py").write_text(CONTRACT)
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "plugins", "check", "odd", "--set", 'plugins=["odd.py"]'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    shown = done.stdout.partition("\nobserver: a finished request is released\n")[2]
    promise, reason, test, read, *_ = shown.splitlines()
    assert promise.startswith("  promise An observer runs for months.")
    assert reason.startswith("  reason  ")
    assert "observer_contract.py)" in reason
    assert test == ("  test    vlmkit_testing.ObserverContract.test_a_finished_request_is_released")
    assert (
        read
        == "  read    vlmkit.interfaces.observer.Observer, docs/reference/interfaces.md#observer"
    )


HOPELESS = """
import tarfile

from vlmkit.errors import MediaError
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.interfaces.observer import Observer

VLMKIT_API = (1, 0)

class Notes:
    \"\"\"Opens files of a format that nobody else knows.\"\"\"

    def recognises(self, data):
        return data.startswith(b"NOTES\\0")

    def load(self, data, bounds):
        from vlmkit.types.message import TextPart

        if len(data) > bounds.max_media_bytes:
            raise MediaError("the notes are too long")
        return [TextPart(data[6:].decode(errors="replace"))]

class Tools:
    names = frozenset({"delete"})

    async def describe(self, name):
        return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}

    async def call(self, name, arguments, limits):
        open("called", "a").close()
        return []

    async def aclose(self):
        pass

def _fail(context):
    raise ZeroDivisionError("no reason at all")

@hookimpl
def vlmkit_register_samplers(registry):
    registry.add("hopeless", _fail)

@hookimpl
def vlmkit_register_media_loaders(registry):
    registry.add("notes", lambda context: Notes())

@hookimpl
def vlmkit_register_tool_sources(registry):
    registry.add("tools", lambda context: Tools())
"""


@pytest.fixture
def failing_plugin(tmp_path: Path) -> Path:
    (tmp_path / "hopeless.py").write_text(HOPELESS.replace('\\"', '"'))
    return tmp_path


LOCAL = ("--set", 'plugins=["hopeless.py"]')


def test_a_provider_that_cannot_be_built_fails_once_with_the_reason(failing_plugin: Path) -> None:
    code, report = checked(failing_plugin, "hopeless", *LOCAL)
    assert (code, report["failed"], report["held"]) == (1, 1, 0)
    (failed,) = [f for f in report["findings"] if f["outcome"] == "failed"]
    assert failed["reason"].startswith("it cannot be built: sampler 'hopeless' from 'hopeless.py'")
    assert {f["reason"] for f in report["findings"] if f["outcome"] == "skipped"} == {
        "it cannot be built"
    }


LONE = """
import vlmkit
from vlmkit_mock.engine import MockEngine

VLMKIT_API = (1, 0)

def _cannot_serve(checkpoint):
    return None if checkpoint.model_type == "lone" else "it serves only lone models"

@vlmkit.hookimpl
def vlmkit_register_engines(registry):
    registry.add("lone", lambda context: MockEngine(), cannot_serve=_cannot_serve)
"""


def test_a_model_without_a_tokenizer_is_no_failure_of_an_engine(tmp_path: Path) -> None:
    (tmp_path / "lone.py").write_text(LONE)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "lone"}')
    code, report = checked(tmp_path, "lone", "./model", "--set", 'plugins=["lone.py"]')
    assert (code, report["failed"], report["held"]) == (1, 0, 0)
    (skipped,) = report["findings"]
    reason = "it is tried with prompts of the model's tokenizer: no installed tokenizer can serve"
    assert skipped["reason"].startswith(reason)


def test_a_loader_is_tested_with_the_given_files(failing_plugin: Path) -> None:
    _, report = checked(failing_plugin, "notes", *LOCAL)
    reasons = {f["reason"] for f in report["findings"]}
    assert "what it opens is not known here: name two files by --file" in reasons
    for name in ("one", "two"):
        (failing_plugin / name).write_bytes(b"NOTES\0" + name.encode() * 40)
    _, report = checked(failing_plugin, "notes", *LOCAL, "--file", "one", "--file", "two")
    held = {f["sentence"] for f in report["findings"] if f["outcome"] == "held"}
    assert "it recognises its own files and no others" in held


def test_the_image_loader_is_tested_with_generated_images(tmp_path: Path) -> None:
    code, report = checked(tmp_path, "image")
    assert (code, report["failed"]) == (0, 0)
    assert report["held"] > 3


def test_tools_are_called_only_with_the_option_call_tools(failing_plugin: Path) -> None:
    code, report = checked(failing_plugin, "tools", *LOCAL)
    assert (code, report["held"]) == (1, 0)
    assert "--call-tools" in report["findings"][0]["reason"]
    _, report = checked(failing_plugin, "tools", *LOCAL, "--call-tools")
    assert report["held"] > 0


def test_what_an_api_needs_to_be_tested_whole_is_told_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vlmkit", "plugins", "check", "openai-chat"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    *_, summary, last = done.stdout.splitlines()
    held, skipped, failed = map(int, re.findall(r"\d+", summary))
    assert held
    assert not failed
    assert last.startswith(f"skipped {skipped} of api: the bodies of its requests are not known")
    assert "inherit vlmkit_testing.ApiContract" in last
    assert re.search(r"api +skipped +each route answers its request\n", done.stdout)


def test_without_pytest_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    config = Config()
    with pytest.raises(PluginError) as error:
        contracts.check("array", load_plugins(PluginSettings(), environ={}), config, None)
    assert str(error.value) == "contracts are run by pytest: hypothesis is not installed"
    assert error.value.hint == install_command("vlmkit-testing")


def test_options_before_the_subcommand_are_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "plugins", "--json", "check", "mock"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "options must follow 'check'" in done.stderr
