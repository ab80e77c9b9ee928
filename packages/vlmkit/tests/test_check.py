"""``vlmkit plugins check`` runs the contracts of what is installed, and finds what is broken."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vlmkit.assembly import load_plugins
from vlmkit.config import read_config
from vlmkit.errors import PluginError
from vlmkit.verify import contracts

BROKEN = """
from typing import Protocol

from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.kinds import Kind
from vlmkit.seams.observer import Observer

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
    """Run the command as people do; return its exit code and its report."""
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
    assert kinds == {"tokenizer", "media_encoder", "engine"}
    assert all(f["reason"] for f in report["findings"] if f["outcome"] == "skipped")


def test_what_needs_a_model_is_skipped_without_one(tmp_path: Path) -> None:
    code, report = checked(tmp_path, "mock")
    assert code == report["held"] == 0
    reasons = {f["kind"]: f["reason"] for f in report["findings"]}
    named = "name a model: vlmkit plugins check NAME MODEL"
    assert reasons == {
        "tokenizer": named,
        "media_encoder": named,
        "engine": named,
        "model": "there is none",
    }


def test_what_it_says_it_cannot_do_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(PICKY)
    shutil.copy(Path(__file__).with_name("spelling.py"), tmp_path)
    code, report = checked(tmp_path, "picky", "mock", "--set", 'plugins=["picky.py"]')
    assert (code, report["failed"]) == (0, 0)
    reasons = {(f["kind"], f["reason"]) for f in report["findings"] if f["outcome"] == "skipped"}
    assert reasons == {
        ("tokenizer", "it serves only others"),
        ("constraint", "constraints of this form are not taken"),
    }
    held = {f["sentence"] for f in report["findings"] if f["outcome"] == "held"}
    assert "every word of a choice may be said and nothing else" in held


def test_what_is_broken_is_named_for_each_kind_a_plugins_own_too(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(BROKEN)
    (tmp_path / "codec_contract.py").write_text(CONTRACT)
    code, report = checked(tmp_path, "odd", "--set", 'plugins=["odd.py"]')
    assert code == 1
    found = {(f["kind"], f["sentence"]): f for f in report["findings"] if f["outcome"] != "held"}
    assert set(found) == {
        ("observer", "a request that is over is let go"),
        ("codec", "umlauts come back"),
        ("codec", "nothing is asked of emoji"),
    }
    assert "'\xc3\xa4' == '\xe4'" in found["codec", "umlauts come back"]["reason"]
    assert found["codec", "nothing is asked of emoji"]["reason"] == "they are not claimed"
    assert report["held"] > 1


def test_without_pytest_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    config = read_config(environ={}).config
    with pytest.raises(PluginError) as error:
        contracts.check("array", load_plugins(config, environ={}), config, None)
    assert str(error.value) == "contracts are run by pytest: hypothesis is not installed"
    assert error.value.hint == 'pip install "vlmkit[testing]"'


def test_options_before_the_command_are_not_dropped_in_silence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "plugins", "--json", "check", "mock"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "options stand after 'check'" in done.stderr
