"""What the documents say is true: their programs run and their headings match the code."""

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vlmkit import hookspecs

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    p for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("p*/*/*.md")]
)


def blocks(document, language):
    text = (ROOT / document).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_every_hook_has_a_heading_with_its_live_signature_and_no_heading_lies():
    headings = re.findall(
        r"^## (vlmkit_\w+\(.*\))$", (ROOT / "docs/reference/hooks.md").read_text(), re.MULTILINE
    )
    live = [
        f"{name}({', '.join(inspect.signature(hook).parameters)})"
        for name, hook in vars(hookspecs).items()
        if name.startswith("vlmkit_register_")
    ]
    assert sorted(headings) == sorted(live)


def test_every_contract_that_the_hooks_page_names_exists():
    import vlmkit.testing

    named = re.findall(r"`vlmkit\.testing\.(\w+)`", (ROOT / "docs/reference/hooks.md").read_text())
    assert len(named) == 5
    assert all(hasattr(vlmkit.testing, name) for name in named)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert not [link for link in links if not (document.parent / link).exists()]


def test_the_readmes_two_commands_name_sessions_of_the_noxfile():
    commands = [c.strip() for c in blocks("README.md", "console")[:2]]
    sessions = [re.search(r"nox -s (\w+)$", command)[1] for command in commands]
    assert sessions == ["demo", "tests"]
    noxfile = (ROOT / "noxfile.py").read_text()
    assert all(f"\ndef {session}(" in noxfile for session in sessions)


@pytest.mark.torch
def test_the_readmes_python_example_runs_as_it_stands(tmp_path):
    pictures = ROOT / "plugins/vlmkit-demo/src/vlmkit_demo/pictures"
    shutil.copy(pictures / "shapes.png", tmp_path)
    program = tmp_path / "example.py"
    program.write_text(blocks("README.md", "python")[0])
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "circle" in done.stdout or "square" in done.stdout or "triangle" in done.stdout


def test_the_first_plugin_of_the_tutorial_loads_and_answers(tmp_path):
    page = "docs/tutorial/first-plugin.md"
    (tmp_path / "shout.py").write_text(blocks(page, "python")[0])
    (tmp_path / "second.toml").write_text(blocks(page, "toml")[0])
    shown = []
    for command in blocks(page, "console")[0].strip().splitlines():
        words = re.findall(r'"[^"]*"|\S+', command)
        arguments = [sys.executable, "-m", *[word.strip('"') for word in words]]
        done = subprocess.run(
            arguments, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert "runner-up" in shown[0]
    assert shown[1]


def test_every_decision_is_listed():
    folder = ROOT / "docs/explanation/adr"
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text())
    assert sorted(listed) == sorted(p.name for p in folder.glob("0*.md"))


def test_no_document_or_source_names_a_path_of_one_machine():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    suspect = re.compile(r"(^|[\s\"'(=])/(tmp|root|home|work|opt)/", re.MULTILINE)
    texts = {
        name: (ROOT / name).read_text(errors="ignore")
        for name in listed.stdout.split()
        if Path(name).suffix in {".py", ".md", ".toml", ".sh"} and (ROOT / name).is_file()
    }
    assert not [name for name, text in texts.items() if suspect.search(text)]
