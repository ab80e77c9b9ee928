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
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "circle" in done.stdout or "square" in done.stdout or "triangle" in done.stdout


def run_commands(commands, folder):
    """Run a document's commands as this Python's modules; return what each one shows."""
    shown = []
    for command in commands:
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        shown.append(done.stdout)
    return shown


def test_the_first_plugin_of_the_tutorial_loads_and_answers(tmp_path):
    page = "docs/tutorial/first-plugin.md"
    (tmp_path / "shout.py").write_text(blocks(page, "python")[0])
    (tmp_path / "second.toml").write_text(blocks(page, "toml")[0])
    shown = run_commands(blocks(page, "console")[0].strip().splitlines(), tmp_path)
    assert "runner-up" in shown[0]
    assert shown[1]


def test_the_toy_of_the_plugin_guide_answers_and_keeps_the_contracts(tmp_path):
    page = "docs/how-to/write-a-plugin.md"
    files = ("toy.py", "shortest.py", "test_toy.py")
    for name, program in zip(files, blocks(page, "python"), strict=True):
        (tmp_path / name).write_text(program)
    (tmp_path / "toy_model").mkdir()
    (tmp_path / "toy_model/config.json").write_text(blocks(page, "json")[0])
    (tmp_path / "toy.toml").write_text(blocks(page, "toml")[0])
    install, *commands = blocks(page, "console")[0].strip().splitlines()
    assert install == 'pip install "vlmkit[testing]"'
    plugins, answer, tests = run_commands(commands, tmp_path)
    assert {"toy.py", "shortest.py"} <= set(plugins.split())
    assert answer == "hi cat!\n"
    passed, skipped = re.search(r"(\d+) passed, (\d+) skipped", tests).groups()
    assert int(passed) > 60
    assert int(skipped) < 10


def test_the_plugin_guide_names_every_contract():
    import vlmkit.testing

    text = (ROOT / "docs/how-to/write-a-plugin.md").read_text()
    contracts = [name for name in vlmkit.testing.__all__ if name.endswith("Contract")]
    assert len(contracts) == 5
    assert all(f"`{name}`" in text for name in contracts)


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
