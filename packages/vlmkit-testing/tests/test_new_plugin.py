"""``vlmkit plugins new`` writes a project that works unchanged, for each kind of component."""

import functools
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET

import pytest

from vlmkit.errors import ConfigError
from vlmkit.plugins.kinds import (
    COMMAND,
    CONSTRAINT,
    ENGINE,
    KINDS,
    MEDIA_ENCODER,
    PROPOSER,
    RUNNER,
    SAMPLER,
    SCHEDULER,
    TOKENIZER,
)
from vlmkit_server.plugin import VLMKIT_KINDS
from vlmkit_testing import project

ALL_KINDS = (*KINDS, *VLMKIT_KINDS)
NAMES = {kind.name: f"my-{kind.name.replace('_', '-')}" for kind in ALL_KINDS}
COSTLY = tuple(
    kind.name for kind in (TOKENIZER, MEDIA_ENCODER, ENGINE, SCHEDULER, SAMPLER, CONSTRAINT, RUNNER)
)
"""The kinds whose contracts take most of the time of all contracts."""
SAMPLE = tuple(kind.name for kind in ALL_KINDS if kind.name not in COSTLY)
WORDS = ("yourname", "yoursummary", "yourkind", "yourneeds", "yourtests")


@pytest.fixture(scope="module")
def written(made_once):
    """Return a folder with a project of each kind, and a site folder in which all are installed."""

    def write(root):
        for kind in ALL_KINDS:
            made = project.write(kind, root / "projects" / kind.name, NAMES[kind.name])
            described = tomllib.loads((made.folder / "pyproject.toml").read_text())["project"]
            info = root / "site" / f"{made.distribution.replace('-', '_')}-0.1.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {made.distribution}\nVersion: 0.1.0\n"
            )
            [(name, module)] = described["entry-points"]["vlmkit"].items()
            (info / "entry_points.txt").write_text(f"[vlmkit]\n{name} = {module}\n")

    return made_once("new-plugins", write)


def environment(root):
    sources = [str(root / "site"), *map(str, sorted(root.glob("projects/*/src")))]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.environ | {"PYTHONPATH": os.pathsep.join([*inherited, *sources])}


@functools.cache
def outcomes(root, kinds):
    """Run the tests of the projects of some kinds in one process; return the outcomes by kind."""
    (root / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", "pytest.ini"]
    projects = [f"projects/{kind}" for kind in kinds]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--junit-xml=report.xml", *projects],
        env=environment(root),
        cwd=root,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    found = {kind: {"passed": 0, "skipped": 0, "failed": []} for kind in kinds}
    for case in ET.parse(root / "report.xml").iter("testcase"):
        kind = case.get("classname").split(".")[1]
        kept = {child.tag for child in case} & {"failure", "error", "skipped"}
        if kept <= {"skipped"}:
            found[kind]["skipped" if kept else "passed"] += 1
        else:
            found[kind]["failed"].append(f"{case.get('name')}\n{done.stdout[-8000:]}")
    return found


@pytest.mark.parametrize("kind", SAMPLE)
def test_the_tests_of_a_new_project_pass(kind, written):
    outcome = outcomes(written, SAMPLE)[kind]
    assert outcome["failed"] == []
    assert outcome["passed"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", COSTLY)
def test_the_tests_of_a_new_project_of_a_costly_kind_pass(kind, written):
    """The nox session ``contract`` runs these."""
    outcome = outcomes(written, COSTLY)[kind]
    assert outcome["failed"] == []
    assert outcome["passed"] >= 3


def test_new_projects_of_all_kinds_can_be_installed_together(written):
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "plugins", "--json"],
        env=environment(written),
        cwd=written,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    kinds = {(p["kind"], p["name"]) for p in found["providers"] if p["reason"] is None}
    assert set(NAMES.items()) <= kinds
    assert not [p["source"] for p in found["plugins"] if p["error"] and "-my-" in p["source"]]


@pytest.mark.parametrize("kind", [kind.name for kind in ALL_KINDS])
def test_a_new_project_has_a_name_and_keywords_but_no_license(kind, written):
    folder = written / "projects" / kind
    described = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    name = NAMES[kind]
    assert described["name"] == f"vlmkit-{name}"
    assert {"vlmkit-plugin", f"vlmkit-{kind.replace('_', '-')}"} <= set(described["keywords"])
    assert "license" not in described
    assert described["dependencies"][0] == "vlmkit-core>=0.1,<0.2"
    assert not {"LICENSE", "COPYING"} & {path.name for path in folder.iterdir()}
    assert (folder / f"src/vlmkit_{name.replace('-', '_')}/py.typed").is_file()
    texts = {p: p.read_text() for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert not [(p, word) for p, text in texts.items() for word in WORDS if word in text]
    assert f"vlmkit plugins check {' '.join(check_of(kind))}\n" in texts[folder / "README.md"]


@pytest.mark.parametrize("kind", [kind.name for kind in ALL_KINDS])
def test_a_new_project_depends_on_what_it_imports(kind, written):
    folder = written / "projects" / kind
    described = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    named = {re.match(r"[\w-]+", need)[0] for need in described["dependencies"]}
    tested = named | {
        re.match(r"[\w-]+", need)[0] for need in described["optional-dependencies"]["test"]
    }
    homes = {"PIL": "pillow", "array_api_compat": "array-api-compat", "pytest": "vlmkit-testing"}
    homes |= {"vlmkit": "vlmkit-core", "vlmkit_server": "vlmkit-server"}
    homes |= {"vlmkit_mock": "vlmkit-mock", "vlmkit_testing": "vlmkit-testing"}
    own = described["name"].replace("-", "_")
    for place, known in (("src", named), ("tests", tested)):
        sources = [path.read_text() for path in (folder / place).rglob("*.py")]
        found = {
            name
            for source in sources
            for name in re.findall(r"^ *(?:import|from) (\w+)", source, re.MULTILINE)
        }
        others = {homes.get(name, name) for name in found - sys.stdlib_module_names - {own}}
        assert others <= known, place


def test_the_command_prints_the_next_commands(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "plugins", "new", "media encoder", "Vlmkit_Far"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    first, *commands = done.stdout.splitlines()
    assert first == "vlmkit-far, a plugin of the kind media encoder: 9 files in Vlmkit_Far"
    assert commands[0] == "  cd Vlmkit_Far"
    assert commands[-1] == "  vlmkit plugins check far mock"


@pytest.mark.parametrize(
    "name",
    ["", "x", "Cool", "1st", "a b", "a--b", "-a", "a-", "a_b", "é", "x" * 41, "../a", "a.b", "a\n"],
)
def test_an_invalid_distribution_name_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="must be small letters and digits"):
        project.write(SAMPLER, tmp_path / "new", name)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["auto", "none", "vlmkit", "builtin", "mock", "hf", "torch"])
def test_reserved_names_are_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="one of vlmkit's own"):
        project.write(SAMPLER, tmp_path / "new", name)


def test_built_in_command_names_are_refused_for_commands_only(tmp_path):
    with pytest.raises(ConfigError, match="one of vlmkit's own"):
        project.write(COMMAND, tmp_path / "new", "serve")
    assert project.write(SAMPLER, tmp_path / "new", "serve").distribution == "vlmkit-serve"


def test_a_file_created_during_the_command_is_not_replaced(tmp_path, monkeypatch):
    place = tmp_path / "new"
    contents = project._contents

    def planted(*arguments):
        place.mkdir()
        (place / "pyproject.toml").symlink_to(tmp_path / "another")
        return contents(*arguments)

    class LooksEmpty(type(place)):
        """A path that does not seem to exist, like a folder that is filled after the check."""

        def exists(self, **_):
            return False

    (tmp_path / "another").write_text("another's")
    monkeypatch.setattr(project, "_contents", planted)
    with pytest.raises(ConfigError, match="cannot be written"):
        project.write(SAMPLER, LooksEmpty(place), "mine")
    assert (tmp_path / "another").read_text() == "another's"


def test_existing_files_are_never_modified(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place in ("full", "file"):
        with pytest.raises(ConfigError, match="is not empty"):
            project.write(SAMPLER, tmp_path / place, "cool")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert project.write(SAMPLER, tmp_path / "empty", "cool").files


def test_the_name_of_an_installed_distribution_is_refused(tmp_path, monkeypatch):
    info = tmp_path / "vlmkit_cool-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: vlmkit-cool\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="is installed already"):
        project.write(SAMPLER, tmp_path / "new", "cool")


def test_an_unknown_kind_is_refused_with_the_known_kinds(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "plugins", "new", "samplr", "cool"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'samplr' is no kind of plugin. There are: tokenizer, media-encoder" in done.stderr


def test_every_kind_has_a_template_and_no_template_is_left_over():
    kinds = {kind.name for kind in ALL_KINDS}
    assert set(project.EXAMPLES) == kinds
    assert {path.name for path in project.TEMPLATES.iterdir()} == kinds | {project.COMMON}


@pytest.fixture(scope="module")
def other_server(tmp_path_factory):
    """Return the address of a server of the mock model, in a process of its own."""
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--set", "server.port=0"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        while "is ready" not in (said := log.read_text()):
            assert process.poll() is None, said
            time.sleep(0.1)
        yield re.search(r"listening on http://(\S+)", said)[1]
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind.name for kind in ALL_KINDS])
def test_plugins_check_passes_on_a_new_project(kind, written, other_server):
    given = [word.replace("127.0.0.1:8000", other_server) for word in check_of(kind)]
    done = subprocess.run(
        [sys.executable, "-m", "vlmkit", "plugins", "check", *given, "--json"],
        env=environment(written),
        cwd=written / "projects" / kind,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert (done.returncode, report["failed"]) == (0, 0), report
    assert report["held"] >= 3


def check_of(kind):
    return NAMES[kind], *project.EXAMPLES[kind].tried_with.replace("yourname", NAMES[kind]).split()


@pytest.mark.slow
def test_a_new_project_installs_by_the_commands_of_its_readme(tmp_path):
    """Uses pip in editable mode, without an index; dependencies are those of the tests."""
    folder = tmp_path / "vlmkit-cool"
    project.write(PROPOSER, folder, "cool")
    site = tmp_path / "site"
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--target", str(site)]
    pip = [sys.executable, "-m", "pip", "install", *options, "-e", str(folder)]
    subprocess.run(pip, check=True, capture_output=True)
    program = f"import site; site.addsitedir({str(site)!r}); import runpy, sys; del sys.argv[0]; "
    program += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    for words in (["pytest", "-q"], ["vlmkit", "plugins", "check", "cool"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
