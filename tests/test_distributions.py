"""Every distribution is complete, and their versions and requirements fit together."""

import graphlib
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from versioningit import get_version

ROOT = Path(__file__).parents[1]
FOLDERS = sorted([*ROOT.glob("packages/*/"), *ROOT.glob("plugins/*/")])
IDS = [folder.name for folder in FOLDERS]
CORE, TOGETHER = "vlmkit-core", "vlmkit"


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_a_distribution_contains_licence_readme_and_type_marker(folder):
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert len((folder / "README.md").read_text()) > 200
    if folder.name != TOGETHER:
        name = "vlmkit" if folder.name == CORE else folder.name.replace("-", "_")
        assert (folder / "src" / name / "py.typed").is_file()


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_all_distributions_share_one_version_and_one_range(folder):
    described = project(folder)
    assert described["project"]["dynamic"] == ["version"]
    assert described["tool"]["hatch"]["version"] == project(FOLDERS[0])["tool"]["hatch"]["version"]
    assert "versioningit>=3.3" in described["build-system"]["requires"]
    if folder.name != CORE:
        assert "vlmkit-core>=0.1,<0.2" in described["project"]["dependencies"]


def version_of(folder):
    """Return the version that a build in a folder would have."""
    return get_version(folder, config=project(folder)["tool"]["hatch"]["version"])


@pytest.fixture
def repository(tmp_path):
    """A repository with one project file, and a function that runs git in it."""
    folder = tmp_path / "packages/vlmkit-core"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "packages/vlmkit-core/pyproject.toml", folder)

    def git(*arguments):
        author = (
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.com",
            "-c",
            "commit.gpgsign=false",
        )
        command = ["git", *author, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    return folder, git


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_a_tag_decides_the_version_and_a_commit_after_it_has_its_hash(repository):
    folder, git = repository
    git("tag", "v0.1.4")
    assert version_of(folder) == "0.1.4"

    git("commit", "-q", "--allow-empty", "-m", "two")
    revision = git("rev-parse", "--short", "HEAD")
    assert version_of(folder) == f"0.1.4.post1+g{revision}"
    (folder / "pyproject.toml").write_text((folder / "pyproject.toml").read_text() + "#")
    assert version_of(folder) == f"0.1.4.post1+g{revision}.dirty"


def test_a_version_exists_without_tags_and_outside_a_repository(repository, tmp_path_factory):
    folder, git = repository
    git("commit", "-q", "--allow-empty", "-m", "two")
    revision = git("rev-parse", "--short", "HEAD")
    assert version_of(folder) == f"0.1.0.post1+g{revision}"
    outside = tmp_path_factory.mktemp("outside")
    shutil.copy(folder / "pyproject.toml", outside)
    assert version_of(outside) == "0.1.0"


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("vlmkit-torch", "vlmkit-hf"),
        ("vlmkit-onnx", "vlmkit-hf"),
        ("vlmkit-demo", "vlmkit-onnx[cpu]"),
    ],
)
def test_a_distribution_that_answers_requires_what_it_needs(name, needed):
    described = project(ROOT / "plugins" / name)["project"]
    assert f"{needed}>=0.1,<0.2" in described["dependencies"]


def test_no_two_distributions_require_each_other():
    own = {f.name: project(f)["project"] for f in FOLDERS}
    required = {name: _own_dependencies(described) for name, described in own.items()}
    graphlib.TopologicalSorter(required).prepare()  # raises CycleError


def _own_dependencies(described):
    return {match[0] for d in described["dependencies"] if (match := re.match(r"vlmkit[a-z-]*", d))}


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_no_distribution_pins_torch(folder):
    described = project(folder)["project"]
    extras = described.get("optional-dependencies", {}).values()
    wanted = [*described["dependencies"], *(d for extra in extras for d in extra)]
    assert not [d for d in wanted if d.startswith("torch") and ("==" in d or "~=" in d)]


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("vlmkit-core", {"litestar", "uvicorn", "multipart", "prometheus-client", "pytest"}),
        ("vlmkit-server", {"prometheus-client", "pytest"}),
        ("vlmkit-testing", {"litestar", "uvicorn", "multipart", "prometheus-client"}),
    ],
)
def test_a_part_of_vlmkit_requires_no_tensor_library_and_nothing_of_others(name, forbidden):
    stated = project(ROOT / "packages" / name)["project"]["dependencies"]
    names = {re.split(r"[>=<\[]", requirement)[0] for requirement in stated}
    backends = {"torch", "transformers", "tokenizers", "huggingface-hub", "onnxruntime"}
    assert not names & {*backends, *forbidden}


def test_only_extensions_of_the_server_require_it():
    own = {f.name: _own_dependencies(project(f)["project"]) for f in FOLDERS}
    requiring = {name for name, needed in own.items() if "vlmkit-server" in needed}
    plugins = {f"vlmkit-{name}" for name in ("events", "mcp", "monitor", "ollama", "ray", "webui")}
    assert requiring == {TOGETHER, *plugins}
    assert not [name for name, needed in own.items() if TOGETHER in needed]


REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["vlmkit"]["repository"]


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_an_index_can_show_who_made_a_distribution_where_it_is_and_what_it_runs_on(folder):
    described = project(folder)["project"]
    assert described["authors"] == [{"name": "The vlmkit authors"}]
    assert {"vlm", "vision-language-model"} < set(described["keywords"])
    assert described["keywords"] == sorted(described["keywords"])
    assert set(described["urls"]) == {"Homepage", "Documentation", "Changelog", "Issues", "Source"}
    assert described["urls"]["Source"] == f"{REPOSITORY}/tree/main/{folder.relative_to(ROOT)}"
    python = "Programming Language :: Python :: "
    versions = [each.removeprefix(python) for each in described["classifiers"] if python in each]
    assert versions == ["3", "3 :: Only", "3.11", "3.12", "3.13", "3.14"]
    assert described["requires-python"] == ">=3.11"


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_links_of_a_description_work_outside_a_clone(folder):
    links = re.findall(r"\]\(([^)\s]+)\)", (folder / "README.md").read_text())
    links += project(folder)["project"]["urls"].values()
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    own = [link.partition("#")[0] for link in links if link.startswith(REPOSITORY)]
    paths = [re.sub(r"^/(?:blob|tree)/main/", "", link.removeprefix(REPOSITORY)) for link in own]
    assert paths
    assert not [p for p in paths if p not in {"", "/issues"} and not (ROOT / p).exists()]


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_torch_is_required_in_the_range_that_was_run(folder):
    described = project(folder)["project"]
    extras = described.get("optional-dependencies", {}).values()
    wanted = [*described["dependencies"], *(d for extra in extras for d in extra)]
    stated = [requirement for requirement in wanted if re.match(r"torch\b", requirement)]
    assert all(re.fullmatch(r"torch>=2\.(6|13),<2\.15", requirement) for requirement in stated)
    assert bool(stated) is (folder.name in {"vlmkit-torch", "vlmkit-demo", "vlmkit-onnx"})
