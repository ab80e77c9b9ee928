"""A server serves models of a plugin's URI scheme under short names, and shows no secrets."""

import sys
import textwrap

import pytest
from running_server import eventually, process

from vlmkit.cli import run

PLUGIN = """
from pathlib import Path
import vlmkit
import vlmkit_mock
from vlmkit.kit.checkpoint import Checkpoint

VLMKIT_API = (1, 0)

def build(context):
    assert context.reference.count("hush") in (0, 2), "a source gets all of a reference"
    if "absent" in context.reference:
        raise OSError(f"{context.reference} does not answer")
    return Checkpoint("mock", Path(vlmkit_mock.__file__).with_name("model"))

@vlmkit.hookimpl
def vlmkit_register_models(registry):
    registry.add("store", build, schemes=("store",), list_models=lambda: ["store://team/tiny"])
"""
CONFIG = textwrap.dedent("""
    plugins = ["./store.py"]
    [[models]]
    model = "store://me:hush@team/tiny%20one?token=hush"
    aliases = ["small"]
    [[models]]
    model = "store://me:hush@team/absent?token=hush"
    [[models]]
    model = "store://team/other"
    name = "late"
    load = "use"
""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("store")
    (made / "store.py").write_text(PLUGIN)
    (made / "vlmkit.toml").write_text(CONFIG)
    return made


@pytest.fixture(scope="module")
def server(folder):
    arguments = ["serve", "--config", "vlmkit.toml", "--port", "0"]
    with process([sys.executable, "-m", "vlmkit", *arguments], folder) as made:
        assert eventually(lambda: made.status("/readyz") in (200, 503) and _settled(made))
        yield made


def _settled(server):
    models = server.http.get(f"{server.url}/v1/models").json()["data"]
    return {each["id"]: each["state"] for each in models}.get("absent") == "failed"


def ask(server, model):
    answer = server.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hello"}]
    )
    return answer.choices[0].message.content


def test_models_of_a_plugin_scheme_are_served_under_the_last_part_of_their_uri(server):
    assert eventually(lambda: ask(server, "tiny one") == "hello")
    assert ask(server, "small") == ask(server, "late") == "hello"
    listed = server.http.get(f"{server.url}/v1/models").text
    assert "store://" not in listed
    assert "hush" not in listed


def test_a_failing_model_source_is_logged_without_secrets(server):
    log = server.log.read_text()
    assert "'store' from" in log
    assert "store://***@team/absent does not answer" in log
    assert "hush" not in log


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["models", "list"], 0, "store://team/tiny"),
        (["models", "info", "store://team/tiny"], 0, "mock"),
        (["doctor", "store://team/tiny"], 0, "model mock (mock)"),
        (["ask", "store://team/tiny", "hello"], 0, "hello"),
        (["config", "show"], 0, "store://***@team/absent"),
        (
            ["models", "pull", "store://me:hush@team/absent?token=hush"],
            1,
            "store://***@team/absent",
        ),
        (
            ["doctor", "store://me:hush@team/else?token=hush"],
            1,
            "'store://***@team/else' is not on",
        ),
        (["ask", "shop://me:hush@team/tiny?hush", "x"], 1, "that begin with 'shop://'"),
        (["ask", "store://me:hush@team/%2e%2e?hush", "x"], 1, "part of its path is '.' or '..'"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_commands_accept_uris_of_plugin_schemes(folder, arguments, code, expected, capsys):
    assert run([*arguments, "--config", str(folder / "vlmkit.toml")]) == code
    output = "".join(capsys.readouterr())
    assert expected in output
    assert "hush" not in output
