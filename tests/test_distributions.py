"""Every distribution is complete, and they belong together."""

import graphlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = sorted([*ROOT.glob("packages/*/"), *ROOT.glob("plugins/*/")])
IDS = [folder.name for folder in FOLDERS]


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_a_distribution_carries_licence_readme_and_type_marker(folder):
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert len((folder / "README.md").read_text()) > 200
    package = folder / "src" / folder.name.replace("-", "_")
    assert (package / "py.typed").is_file()


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_all_share_one_version_and_one_range(folder):
    described = project(folder)
    assert described["project"]["dynamic"] == ["version"]
    source = folder / described["tool"]["hatch"]["version"]["path"]
    assert source.resolve() == ROOT / "packages/vlmkit-core/src/vlmkit/_version.py"
    if folder.name != "vlmkit":
        assert "vlmkit>=0.1,<0.2" in described["project"]["dependencies"]


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("vlmkit-torch", "vlmkit-hf"),
        ("vlmkit-onnx", "vlmkit-hf"),
        ("vlmkit-demo", "vlmkit-onnx[cpu]"),
    ],
)
def test_what_answers_brings_what_it_needs_to_answer(name, needed):
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


def test_the_core_needs_no_tensor_library():
    names = {
        d.split(">")[0].split("[")[0]
        for d in project(ROOT / "packages/vlmkit-core")["project"]["dependencies"]
    }
    assert not names & {"torch", "transformers", "tokenizers", "huggingface-hub", "onnxruntime"}


def test_no_file_is_too_long_to_read():
    sources = [*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources}
    assert not {path: n for path, n in lengths.items() if n > 450}
