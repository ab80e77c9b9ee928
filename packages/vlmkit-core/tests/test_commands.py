"""Commands of plugins on the command line; a broken plugin breaks no other command."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoints
from pathlib import Path

import click
import pytest

from vlmkit.cli import run, vlmkit as group
from vlmkit.kit.install_command import install_command
from vlmkit.plugins import loader
from vlmkit.plugins.kinds import COMMAND

HEAD = "import click\nfrom vlmkit.plugins.hookspecs import hookimpl\nVLMKIT_API = 1\n"
GREET = (
    HEAD
    + """
from vlmkit.errors import CheckpointError

def build(context):
    @click.command()
    @click.argument("who")
    @click.option("--code", type=int, default=0)
    def greet(who, code):
        "Greet WHO."
        if who == "nobody":
            raise CheckpointError("'nobody' cannot be greeted", hint="name somebody")
        click.echo(f"hello {who}")
        click.get_current_context().exit(code)
    return greet

@hookimpl
def vlmkit_register_commands(registry):
    registry.add("greet", build, description="Greet somebody.")
"""
)

Shown = pytest.CaptureFixture[str]
Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that writes a plugin file and loads it in every run."""
    files: list[str] = []

    def install(source: str) -> Path:
        file = tmp_path / f"plugin_{len(files)}.py"
        file.write_text(source)
        files.append(str(file))
        monkeypatch.setenv("VLMKIT_PLUGINS", json.dumps(files))
        return file

    return install


def registering(*lines: str, head: str = "") -> str:
    """Return the source of a plugin whose hook for commands runs this code."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"{HEAD}{head}@hookimpl\ndef vlmkit_register_commands(registry):\n{body}"


def test_a_plugins_command_is_listed_with_its_description_and_runs(
    install: Install, capsys: Shown
) -> None:
    install(GREET)
    assert run(["--help"]) == 0
    _, _, listed = capsys.readouterr().out.partition("Commands of plugins:\n")
    assert re.search(r"^  greet +Greet somebody\.$", listed, re.MULTILINE)
    assert run(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert run(["greet", "--help"]) == 0
    assert "Usage: vlmkit greet" in capsys.readouterr().out


def test_without_plugins_the_help_has_no_section_for_plugin_commands(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: EntryPoints([]))
    assert run(["--help"]) == 0
    assert "Commands of plugins" not in capsys.readouterr().out


def test_an_error_of_a_plugins_command_is_reported_like_any_other(
    install: Install, capsys: Shown
) -> None:
    install(GREET)
    assert run(["greet", "nobody"]) == 1
    assert capsys.readouterr().err == ("error: 'nobody' cannot be greeted\nhint: name somebody\n")
    assert run(["greet"]) == 2
    assert "missing argument 'WHO'" in capsys.readouterr().err
    assert run(["--debug", "greet", "you", "--code", "3"]) == 3


def test_a_command_is_built_when_it_runs_and_not_when_it_is_listed(
    install: Install, capsys: Shown
) -> None:
    install(registering("registry.add('boom', lambda context: 1 / 0, description='Explode.')"))
    for arguments in (["--help"], ["plugins"], ["boomm"]):
        assert run(arguments) in {0, 2}
        assert "ZeroDivisionError" not in "".join(capsys.readouterr())
    assert run(["boom"]) == 1
    assert "could not be built: ZeroDivisionError" in capsys.readouterr().err


def test_a_command_reports_why_it_cannot_run_on_this_machine(
    install: Install, capsys: Shown
) -> None:
    file = install(registering("registry.add('x', print, why_not=lambda: 'no torch is installed')"))
    assert run(["x"]) == 1
    assert capsys.readouterr().err == (
        f"error: command 'x' from {str(file)!r} cannot be used: no torch is installed\n"
    )


def test_an_invalid_command_is_refused_with_its_plugin(install: Install, capsys: Shown) -> None:
    file = install(registering("registry.add('x', lambda context: 'text')"))
    assert run(["x"]) == 1
    assert capsys.readouterr().err == (
        f"error: command 'x' from {str(file)!r} was built as 'str', not as a click.Command\n"
    )


def test_commands_are_listed_among_the_kinds(install: Install, capsys: Shown) -> None:
    file = install(GREET)
    assert run(["plugins", "--json"]) == 0
    providers = json.loads(capsys.readouterr().out)["providers"]
    greet = next(p for p in providers if p["kind"] == "command" and p["name"] == "greet")
    assert greet["plugin"] == str(file)
    assert greet["description"] == "Greet somebody."


@pytest.mark.parametrize("name", sorted(group.commands))
def test_a_plugin_cannot_replace_a_built_in_command(
    name: str, install: Install, capsys: Shown
) -> None:
    file = install(registering(f"registry.add({name!r}, lambda context: None)"))
    error = loader.load(files=[file]).broken[str(file)]
    assert str(error) == (
        f"command {name!r} from {str(file)!r} has the name of one of vlmkit's own"
    )
    assert run([name, "--help"]) == 0
    assert f"Usage: vlmkit {name}" in capsys.readouterr().out


def test_every_built_in_command_is_a_reserved_name() -> None:
    own = [name for name, owner in COMMAND.reserved.items() if owner == "vlmkit"]
    assert sorted(group.commands) == sorted(own)


@pytest.mark.parametrize("name", ["serve", "keys", "verify", "plugins check", "plugins new"])
def test_a_command_of_a_distribution_that_is_not_installed_says_how_to_install_it(
    name: str, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: EntryPoints([]))
    owner = COMMAND.reserved[name]
    assert run(name.split()) == 1
    assert capsys.readouterr().err == (
        f"error: `vlmkit {name}` is a command of {owner}, which is not installed\n"
        f"hint: {install_command(owner)}\n"
    )


def test_a_command_of_a_blocked_distribution_says_so(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLMKIT_BLOCK", "vlmkit-testing")
    assert run(["verify"]) == 1
    assert "is a command of vlmkit-testing, which VLMKIT_BLOCK excludes" in capsys.readouterr().err


def test_a_command_of_a_broken_distribution_states_the_cause(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = importlib.metadata.EntryPoint("testing", "no_such_module_here", "vlmkit")
    distribution = importlib.metadata.distribution("vlmkit-testing")
    vars(entry).update(dist=distribution)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: EntryPoints([entry]))
    assert run(["verify"]) == 1
    shown = capsys.readouterr().err
    assert "is a command of vlmkit-testing, which could not be loaded: ModuleNotFound" in shown


@pytest.mark.parametrize(
    ("words", "offered"),
    [(["v"], ["verify"]), (["plugins", ""], ["check", "new"]), (["models", "l"], ["list"])],
)
def test_shell_completion_knows_commands_of_other_vlmkit_distributions(
    words: list[str], offered: list[str]
) -> None:
    environ = {
        "_VLMKIT_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["vlmkit", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-c", "from vlmkit.cli import vlmkit; vlmkit(prog_name='vlmkit')"],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == offered


@pytest.mark.parametrize("name", ["serve", "plugins check"])
def test_a_plugin_cannot_take_a_command_of_a_vlmkit_distribution(
    name: str, install: Install, capsys: Shown
) -> None:
    file = install(registering(f"registry.add({name!r}, lambda context: None)"))
    error = loader.load(files=[file]).broken[str(file)]
    assert str(error) == (
        f"command {name!r} from {str(file)!r} has the name of one of vlmkit's own"
    )


def test_a_plugin_can_add_a_command_to_a_built_in_group(install: Install, capsys: Shown) -> None:
    install(GREET.replace('"greet"', '"models greet"'))
    assert run(["models", "--help"]) == 0
    _, _, listed = capsys.readouterr().out.partition("Commands of plugins:\n")
    assert re.search(r"^  greet +Greet somebody\.$", listed, re.MULTILINE)
    assert run(["models", "greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert run(["greet", "you"]) == 2


def test_a_config_chooses_between_two_plugins_with_the_same_command(
    install: Install, capsys: Shown
) -> None:
    install(GREET)
    install(GREET.replace("hello", "welcome"))
    assert run(["--help"]) == 0
    assert capsys.readouterr().out.count("Greet somebody.") == 2
    assert run(["greet", "you"]) == 2
    assert "hint: say which: " in capsys.readouterr().err
    assert run(["plugin_1:greet", "you"]) == 0
    assert capsys.readouterr().out == "welcome you\n"


@pytest.mark.parametrize(
    "source",
    [
        "import no_such_module",
        "raise SystemExit(3)",
        registering("registry.add('serve', print)"),
        registering("registry.add('auto', print)"),
        registering("registry.add('x', print, description=None)"),
        registering("raise RuntimeError('no')"),
    ],
)
def test_a_broken_plugin_breaks_no_command(source: str, install: Install, capsys: Shown) -> None:
    install(source)
    assert run(["--help"]) == 0
    assert "serve" in capsys.readouterr().out
    assert run(["serv"]) == 2
    assert "no such command 'serv'. Did you mean 'serve'?" in capsys.readouterr().err


def test_a_missing_command_is_reported_with_the_plugin_that_could_not_be_loaded(
    install: Install, capsys: Shown
) -> None:
    file = install("import no_such_module")
    assert run(["transmute"]) == 2
    shown = capsys.readouterr().err
    assert "no such command 'transmute'; could" in shown
    assert f"could not be loaded: {file}: ModuleNotFoundError" in shown
    assert "ModuleNotFoundError: No module named 'no_such_module'" in shown


def test_commands_are_listed_although_the_config_is_broken(
    capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLMKIT_CONFIG", "/none.toml")
    assert run(["--help"]) == 0
    assert run(["nope"]) == 2
    assert "config file '/none.toml' cannot be read" in capsys.readouterr().err


def test_a_misspelt_command_is_compared_with_commands_of_plugins(
    install: Install, capsys: Shown
) -> None:
    install(GREET)
    assert run(["gret", "you"]) == 2
    assert "no such command 'gret'. Did you mean 'greet'?" in capsys.readouterr().err


def test_a_blocked_plugin_adds_no_command(
    install: Install, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = install(GREET)
    monkeypatch.setenv("VLMKIT_BLOCK", str(file))
    assert run(["greet", "you"]) == 2
    assert run(["--help"]) == 0
    assert "Greet somebody." not in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--version"], ["ask", "--help"], ["chat", "--nope"]])
def test_a_built_in_command_is_found_without_loading_plugins(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(**_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(loader, "load", load)
    assert run(arguments) in {0, 2}


def test_a_command_loads_plugins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    load = loader.load

    def counted(**options: object) -> loader.Plugins:
        calls.append(options)
        return load(**options)  # type: ignore[arg-type]

    monkeypatch.setattr(loader, "load", counted)
    for arguments in (["--help"], [], ["plugins"], ["nope"], ["ask", "mock", "hi"]):
        calls.clear()
        run(arguments)
        assert len(calls) == 1, arguments


def test_shell_completion_prints_no_error(install: Install) -> None:
    install(GREET)
    context = click.Context(group, resilient_parsing=True)
    assert group.resolve_command(context, ["gre"])[1] is None
    name, command, _ = group.resolve_command(context, ["greet"])
    assert name == "greet"
    assert command is not None
