"""Each package states whether it is public, and plugins need public names only."""

import ast
import re
from pathlib import Path

import pytest

import vlmkit

ROOT = Path(__file__).parents[1]
PACKAGES = {"errors", "image_files", "interfaces", "kit", "settings", "types"}
OF_THE_SERVER = (
    "vlmkit_server.interfaces.",
    "vlmkit_server.settings.",
    "vlmkit_server.configured.",
    "vlmkit_server.conversation.exchange.",
    "vlmkit_server.conversation.host.",
    "vlmkit_server.exchange.streaming.",
    "vlmkit_server.http.errors.",
    "vlmkit_server.wire.answer_forms.",
    "vlmkit_server.wire.body.",
    "vlmkit_server.wire.sampling_fields.",
    "vlmkit_server.wire.tool_fields.",
)
FOR_PROGRAMS = {
    "vlmkit_server.app.create_app",
    "vlmkit_server.fleet.model_spec.ModelSpec",
    "vlmkit_server.run.serve",
}
"""What a program may use and a plugin need not."""
MODULES = {
    "cli.model_command",
    "plugins.hookspecs",
    "plugins.kinds",
    "plugins.registry",
    "running.fleet",
    "running.remote_encoder",
    "running.remote_runner",
    "running.replicas",
}
PLACES = ("plugins/*/src/**/*.py", "examples/*/*.py", "tests/audio_plugin/*.py")
SOURCES = sorted(source for place in PLACES for source in ROOT.glob(place))
GUIDES = [page for kind in ("how-to", "tutorial") for page in ROOT.glob(f"docs/{kind}/*.md")]
PROGRAMS = [
    (page.name, program)
    for page in sorted(GUIDES)
    for program in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


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


def test_programs_of_guides_import_only_public_names():
    used = {(page, name) for page, program in PROGRAMS for name in imports(program)}
    assert ("test-a-client.md", "vlmkit_server.app.create_app") in used
    assert [each for each in used if not (is_public(each[1]) or each[1] in FOR_PROGRAMS)] == []


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
    assert all(f"`{name}`" in page for name in FOR_PROGRAMS)
    assert "`vlmkit_testing`" in page


def test_each_public_package_states_that_it_is_public():
    for name in PACKAGES - {"errors"}:
        text = (ROOT / f"packages/vlmkit-core/src/vlmkit/{name}/__init__.py").read_text()
        assert "Public" in text.split('"""')[1], name
