"""The generated reference pages equal the sources and omit nothing."""

import pkgutil
import re

import click
import pytest

import architecture_page
import fields_page
import interfaces_page
import vlmkit.interfaces
import vlmkit.kit
import vlmkit.types
import vlmkit_server.interfaces
import wire_page
from vlmkit import cli
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit.settings.plugins import PluginSettings
from vlmkit_testing import project


def test_the_generated_pages_equal_their_sources():
    for path, text in interfaces_page.pages().items():
        assert path.read_text() == text, "renew it: nox -s reference"


def test_the_map_of_imports_equals_the_sources():
    text = architecture_page.PATH.read_text()
    assert text == architecture_page.page(), "renew it: nox -s reference"


def test_the_map_omits_only_transitive_arrows():
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}
    drawn = architecture_page.diagram(graph)
    assert re.findall(r"n\d --> n\d", drawn) == ["n0 --> n1", "n1 --> n2", "n2 --> n3"]


EXPLANATIONS = [
    "CONTRIBUTING.md",
    *("docs/explanation/architecture.md", "docs/explanation/glossary.md"),
    *("docs/explanation/life-of-a-request.md", "docs/explanation/testing.md"),
    "docs/explanation/where-things-go.md",
]
REDESIGN = "docs/explanation/adr/0067-redesign-of-the-interfaces.md"  # which has the old names
DECISIONS = [
    path.relative_to(interfaces_page.ROOT).as_posix()
    for path in sorted((interfaces_page.ROOT / "docs/explanation/adr").glob("0*.md"))
]
FILES_AND_LOGGERS = {"json", "requests", "service", "sqlite3", "toml", "yml"}
"""What follows ``vlmkit.`` in names that are no modules."""


def files_named(page):
    text = (interfaces_page.ROOT / page).read_text()
    folders = "benchmarks|docs|packages|plugins|tests"
    return set(re.findall(rf"`((?:{folders})/[\w/.-]*)`", text))


@pytest.mark.parametrize("page", EXPLANATIONS)
def test_every_explanation_names_files(page):
    assert files_named(page)


@pytest.mark.parametrize("page", [*EXPLANATIONS, *DECISIONS])
def test_every_file_named_by_an_explanation_exists(page):
    missing = [path for path in files_named(page) if not (interfaces_page.ROOT / path).exists()]
    assert not missing


def defines(name):
    """Return whether a dotted name is one of our modules, or an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        for source in interfaces_page.ROOT.glob(f"*/*/src/{'/'.join(parts[:end])}*"):
            file = source / "__init__.py" if source.is_dir() else source
            if source.stem == parts[end - 1] and file.suffix == ".py" and file.is_file():
                return end == len(parts) or re.search(rf"\b{parts[end]}\b", file.read_text())
    return False


@pytest.mark.parametrize("folder", ["docs", "plugins"])
def test_every_module_and_attribute_named_by_a_page_exists(folder):
    named = {
        (page.relative_to(interfaces_page.ROOT).as_posix(), name)
        for page in sorted((interfaces_page.ROOT / folder).rglob("*.md"))
        for name in re.findall(r"`(vlmkit(?:_[a-z]+)?(?:\.\w+)+)", page.read_text())
    }
    assert named
    assert not [
        (page, name)
        for page, name in sorted(named)
        if page != REDESIGN and name.split(".")[1] not in FILES_AND_LOGGERS and not defines(name)
    ]


def test_pages_name_files_by_their_whole_path():
    texts = [(interfaces_page.ROOT / page).read_text() for page in EXPLANATIONS]
    assert re.findall(r"`vlmkit\w*/[\w/.]+`", "".join(texts)) == []


def test_the_page_of_fields_equals_the_table():
    assert fields_page.PATH.read_text() == fields_page.page(), "renew it: nox -s reference"


def test_the_page_of_the_wire_protocol_equals_its_types():
    text = wire_page.PATH.read_text()
    assert text == wire_page.page(), "renew it: nox -s reference"


def test_every_interface_is_on_the_page_of_interfaces():
    named = set(re.findall(r"^### `(vlmkit\S*\.\w+)`$", interfaces_page.interfaces(), re.MULTILINE))
    interfaces = {m.name for m in pkgutil.iter_modules(vlmkit.interfaces.__path__)}
    of_the_server = {m.name for m in pkgutil.iter_modules(vlmkit_server.interfaces.__path__)}
    assert {f"vlmkit.interfaces.{name}" for name in interfaces} <= named
    assert {f"vlmkit_server.interfaces.{name}" for name in of_the_server - {"kinds"}} <= named


def test_every_kind_on_the_page_has_protocol_contract_and_example():
    text = interfaces_page.interfaces()
    for kind in interfaces_page.ALL_KINDS:
        section = re.split(r"^## ", text, flags=re.MULTILINE)
        (own,) = [part for part in section if part.startswith(f"{kind.words.capitalize()}\n")]
        assert f"templates/{kind.name})" in own
        assert f"`{kind.hook}`" in own
        assert not kind.contract or kind.contract.rpartition(":")[2] in own
        assert kind.makes is None or f"#### `{kind.makes.__name__}" in own


def test_the_page_of_interfaces_shows_no_private_names():
    every = "".join(interfaces_page.pages().values())
    shown = re.findall(r"^(?:###|- \*\*|- `)[^:(]*", every, re.MULTILINE)
    assert not [line for line in shown if re.search(r"[ `.]_", line)]


def test_the_page_of_interfaces_states_the_type_of_every_attribute_and_argument_of_a_class():
    text = interfaces_page.interfaces()
    assert not re.findall(r"^- `\w+`:", text, re.MULTILINE)
    assert "- `decodes: bool = True`: whether" in text
    assert "- `dense: torch.Tensor | None = None`: `[seq, seq]` bool" in text
    assert "'LayerKind'" not in text


def test_kinds_that_a_plugin_owns_are_on_the_page_of_interfaces_with_their_owner():
    text = interfaces_page.interfaces()
    for kind in ("Torch attention", "Torch weights"):
        assert "Owned by vlmkit-torch." in text.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]


def test_the_page_of_interfaces_states_arguments_units_and_errors_of_a_method():
    text = interfaces_page.interfaces()
    assert "**`prepare(rows: Seq[Row]) -> Pick`**" in text
    assert "- `rows`: at least one row; the logits have the same order." in text
    assert "of a kind that this compiler does not support.\n" in text
    assert "empty where nothing is traced.\n" in text, "what is returned is one item"
    assert "`[num_tokens, hidden]` float" in text


def test_the_page_on_stability_names_distributions_with_taken_names():
    page = (interfaces_page.ROOT / "docs/reference/stability.md").read_text()
    assert all(f"`-{name}`" in page or f"`vlmkit-{name}`" in page for name in project.TAKEN)


def test_every_module_of_values_is_on_the_page_of_values():
    text = interfaces_page.values()
    for package in (vlmkit.types, vlmkit.kit):
        modules = pkgutil.iter_modules(package.__path__)
        names = {module.name for module in modules if module.name[0] != "_"}
        assert {n for n in names if f"\n### `{package.__name__}.{n}`\n" in text} == names


def test_the_page_of_values_states_the_module_of_a_name():
    assert "`ImageLimits` of `vlmkit.settings.images`" in interfaces_page.interfaces()


def test_the_python_page_states_how_to_load_and_generate_and_the_errors():
    text = interfaces_page.python()
    for name in ("load(", "fetch(", "- **`generate(", "- **`async astream(", "`RequestError"):
        assert name in text


def commands_of(command, name):
    """Yield a command, or those of a group, with the names that a user types."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    if command.invoke_without_command and command is not cli.vlmkit:
        yield name, command
    for inner in command.commands.values():
        yield from commands_of(inner, f"{name} {inner.name}")


def test_the_reference_lists_every_command_with_its_options():
    page = (interfaces_page.ROOT / "docs/reference/cli.md").read_text()
    parts = dict(re.findall(r"^## `(.*?)`\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    commands = dict(commands_of(cli.vlmkit, "vlmkit"))
    added = load_plugins(PluginSettings()).commands
    for each in added:
        if [*interfaces_page.ROOT.glob(f"p*/{each.plugin}")]:  # a distribution of this repository
            command = added.build(each.name, {}, BuildContext())
            commands |= commands_of(command, f"vlmkit {each.name}")
    assert set(parts) == set(commands)
    assert {"vlmkit serve", "vlmkit keys add", "vlmkit mcp", "vlmkit export"} <= set(commands)
    for name, command in commands.items():
        own = [p for p in command.params if isinstance(p, click.Option)]
        shared = {"config_file", "assignments"}
        options = {option for p in own if p.name not in shared for option in p.opts}
        table = re.findall(r"^\| (.*?) \|", parts[name], re.MULTILINE)
        assert set(re.findall(r"`(-[\w-]+)`", " ".join(table))) == options, name
