"""The structure measures count what they state, on sources made for these tests."""

import textwrap

import pytest

from structure import imports, sizes, tables
from structure.project import Project

GRAPH = {
    "top": frozenset({"left", "right"}),
    "left": frozenset({"right"}),
    "right": frozenset({"left", "low"}),
    "low": frozenset(),
}
BLOCK = "\n".join(f"value_{number} = call({number})" for number in range(8))

PAGE = "## What is public\n\n`vlmkit.kit`\n\n## Later\n\n`vlmkit.x`\n"


@pytest.fixture
def project(tmp_path):
    """A checkout of one core before it is split and one plugin."""
    files = {
        "packages/vlmkit/src/vlmkit/__init__.py": "from vlmkit.server.app import Shown as Shown\n",
        "packages/vlmkit/src/vlmkit/server/__init__.py": "",
        "packages/vlmkit/src/vlmkit/server/app.py": '''
            """Doc.

            More of it.
            """

            # a comment
            class Shown:
                """Public."""

                def __init__(self, a, b, c, d, e, f, g, *rest, h):  # nine of them
                    """Doc."""
        ''',
        "packages/vlmkit/src/vlmkit/kit/__init__.py": "",
        "packages/vlmkit/src/vlmkit/kit/part.py": BLOCK,
        "plugins/vlmkit-one/src/vlmkit_one/__init__.py": f"import vlmkit\n\n# ours\n{BLOCK}\n",
        "docs/reference/stability.md": PAGE,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip("\n"))
    return Project(tmp_path)


def test_a_cycle_is_one_component_and_one_link_of_a_chain():
    groups = [set(group) for group in imports.components(GRAPH)]
    assert groups == [{"low"}, {"left", "right"}, {"top"}]
    assert imports.longest_chain(GRAPH) == ["top", "left, right", "low"]
    assert imports.longest_chain({}) == []


def test_parts_keep_their_names_when_the_core_is_split(project):
    parts = {module.name: module.part for module in project.modules}
    assert parts["vlmkit.server.app"] == "vlmkit-server"
    assert parts["vlmkit.kit.part"] == "vlmkit-core"
    assert parts["vlmkit_one"] == "vlmkit-one"


def test_comments_docstrings_and_blank_lines_are_not_counted_as_code(project):
    assert sizes.code_lines(project, None)["vlmkit-server"].number == 2
    assert sizes.lines(project, None)["vlmkit-server"].number == 11


def test_a_repeated_run_of_lines_counts_once(project):
    (item,) = sizes.repeated_runs(project, None)["all"].items
    assert item.startswith("plugins/vlmkit-one/src/vlmkit_one/__init__.py:4 = ")
    assert item.endswith("/vlmkit/kit/part.py:1")


def test_a_constructor_with_nine_parameters_beside_self_is_listed(project):
    (item,) = sizes.constructors(project, None)["vlmkit-server"].items
    assert item.endswith("app.py:10 Shown (9)")


def test_names_of_the_page_and_the_front_package_are_public(project):
    assert project.public.has("vlmkit.kit.part", "Thing")
    assert not project.public.has("vlmkit.kit.part", "Thing._hidden")
    assert project.public.has("vlmkit.server.app", "Shown.method")
    assert not project.public.has("vlmkit.server.app", "Other")
    assert not project.public.has("vlmkit.x", "")


def test_a_changed_cell_shows_its_earlier_value():
    now = {table.name: {"all": dict.fromkeys(table.measures, 2)} for table in tables.TABLES}
    before = {"sources": {"all": {"lines": 1000, "code": 2}}}
    assert "| all | 1,000 → 2 | 2 |" in tables.written(now, before)
    assert "→" not in tables.written(now)
