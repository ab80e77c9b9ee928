"""Each package states whether it is public, and plugins need public names only."""

import ast
from pathlib import Path

import pytest

import vlmkit

ROOT = Path(__file__).parents[1]
PACKAGES = {"errors", "image_files", "interfaces", "kit", "settings", "types"}
OF_THE_SERVER = (
    "vlmkit_server.interfaces.",
    "vlmkit_server.settings.",
    "vlmkit_server.conversation.exchange.",
    "vlmkit_server.conversation.host.",
    "vlmkit_server.exchange.streaming.",
    "vlmkit_server.http.errors.",
    "vlmkit_server.wire.answer_forms.",
    "vlmkit_server.wire.body.",
    "vlmkit_server.wire.sampling_fields.",
    "vlmkit_server.wire.tool_fields.",
)
MODULES = {"plugins.hookspecs", "plugins.kinds", "plugins.registry"}
PLACES = ("plugins/*/src/**/*.py", "examples/*/*.py", "tests/audio_plugin/*.py")
SOURCES = sorted(source for place in PLACES for source in ROOT.glob(place))


def imports(program):
    """Return the names of the core and the server that a program imports; the core's without it."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        own = (name for name in names if name.startswith(("vlmkit.", "vlmkit_server.")))
        yield from (name.removeprefix("vlmkit.") for name in own)


def is_public(name):
    package, _, rest = name.partition(".")
    module = f"{package}.{rest.partition('.')[0]}"
    is_core = package in PACKAGES or module in MODULES or name in vlmkit.__all__
    return is_core or name.startswith(OF_THE_SERVER)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_our_plugins_import_only_public_names(source):
    assert [name for name in imports(source.read_text()) if not is_public(name)] == []


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("from vlmkit.running.engine_loop.loop import Loop", ["running.engine_loop.loop.Loop"]),
        ("def f():\n    import vlmkit.cli.loading", ["cli.loading"]),
        ("from vlmkit import pipeline", ["pipeline"]),
        ("from vlmkit.plugins import loader", ["plugins.loader"]),
        ("from vlmkit_server.app import create_app", ["vlmkit_server.app.create_app"]),
        ("from vlmkit_server.interfaces.monitor import Monitor", []),
        ("from vlmkit.plugins.kinds import Kind", []),
        ("from vlmkit import hookimpl\nimport vlmkit_mock.engine", []),
    ],
)
def test_an_import_of_a_private_name_is_found(program, found):
    assert [name for name in imports(program) if not is_public(name)] == found


def test_the_page_on_stability_names_every_public_package():
    page = (ROOT / "docs/reference/stability.md").read_text()
    assert all(f"`vlmkit.{name}`" in page for name in PACKAGES | MODULES)
    assert all(f"`{name[:-1]}`" in page for name in OF_THE_SERVER)
    assert "`vlmkit_testing`" in page


def test_each_public_package_states_that_it_is_public():
    for name in PACKAGES - {"errors"}:
        text = (ROOT / f"packages/vlmkit-core/src/vlmkit/{name}/__init__.py").read_text()
        assert "Public" in text.split('"""')[1], name
