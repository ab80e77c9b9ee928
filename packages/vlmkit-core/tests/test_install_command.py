"""Install commands in hints suit the way in which vlmkit was installed.

``tests/test_installing.py`` runs such commands in real environments.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from vlmkit.kit.install_command import install_command

RECEIPT = """
[tool]
requirements = [
    { name = "vlmkit" },
    { name = "vlmkit-onnx", extras = ["cpu"] },
    { name = "vlmkit-pdf", directory = "/src/vlmkit-pdf" },
]
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a pip environment on the PATH, with a vlmkit from an index."""
    prefix = tmp_path / "environment"
    (prefix / "bin").mkdir(parents=True)
    for name in ("python", "pip"):
        (prefix / "bin" / name).write_text("")
        (prefix / "bin" / name).chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin/python"))
    monkeypatch.setenv("PATH", str(prefix / "bin"))
    for name in ("vlmkit", "vlmkit-core"):
        folder = tmp_path / f"{name.replace('-', '_')}-0.1.0.dist-info"
        folder.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n"
        (folder / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(str(tmp_path))
    return prefix


def record_origin(folder: Path, url: str, **more: Any) -> None:
    stated = json.dumps({"url": url, **more})
    (folder / "vlmkit_core-0.1.0.dist-info/direct_url.json").write_text(stated)


def source_tree(root: Path) -> Path:
    projects = {
        "packages/vlmkit-core": "dependencies = []",
        "packages/vlmkit-testing": 'dependencies = ["vlmkit-core"]',
        "plugins/vlmkit-new": 'dependencies = ["vlmkit>=0.1", "vlmkit-other[fast]>=0.1", "numpy"]',
        "plugins/vlmkit-other": 'dependencies = ["vlmkit>=0.1"]\n'
        'optional-dependencies = { fast = ["vlmkit-third"] }',
        "plugins/vlmkit-third": "dependencies = []",
    }
    for folder, text in projects.items():
        (root / folder).mkdir(parents=True)
        (root / folder / "pyproject.toml").write_text(f"[project]\n{text}\n")
    return root


def test_an_install_from_an_index_needs_only_names(environment: Path) -> None:
    assert install_command("vlmkit-demo") == "pip install vlmkit-demo"
    assert install_command("vlmkit-onnx[cpu]", "a>=2") == 'pip install "vlmkit-onnx[cpu]" "a>=2"'


def test_an_environment_outside_the_path_is_named_by_its_python(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert install_command("a") == f"{environment}/bin/python -m pip install a"


def test_an_install_from_a_wheel_searches_its_folder(environment: Path, tmp_path: Path) -> None:
    record_origin(
        tmp_path, "file:///the%20wheels/vlmkit_core-0.1.0-py3-none-any.whl", archive_info={}
    )
    assert install_command("vlmkit-demo") == ('pip install --find-links "/the wheels" vlmkit-demo')


def test_an_install_from_sources_takes_missing_distributions_from_them(
    environment: Path, tmp_path: Path
) -> None:
    root = source_tree(tmp_path / "src")
    record_origin(tmp_path, (root / "packages/vlmkit-core").as_uri(), dir_info={"editable": True})
    new, other, third = (root / "plugins" / f"vlmkit-{n}" for n in ("new", "other", "third"))
    command = install_command("vlmkit-new", "timm")
    assert command == f'pip install -e {new} timm -e "{other}[fast]" -e {third}'
    record_origin(tmp_path, (root / "packages/vlmkit-core").as_uri(), dir_info={})
    assert install_command("vlmkit-third") == f"pip install {third}"
    assert install_command("vlmkit-testing") == f"pip install {root}/packages/vlmkit-testing"


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"url": 7}', '{"url": "file:///nowhere"}'])
def test_an_unreadable_record_is_ignored(broken: str, environment: Path, tmp_path: Path) -> None:
    (tmp_path / "vlmkit_core-0.1.0.dist-info/direct_url.json").write_text(broken)
    assert install_command("a") == "pip install a"


def test_uv_and_pipx_are_recognised_by_files_in_their_environments(environment: Path) -> None:
    (environment / "pipx_metadata.json").write_text("{}")
    assert install_command("a[b]", "c") == 'pipx inject environment "a[b]" c'
    (environment / "uv-receipt.toml").write_text(RECEIPT)
    assert install_command("a") == (
        'uv tool install vlmkit --with "vlmkit-onnx[cpu]" --with /src/vlmkit-pdf --with a'
    )


def test_an_environment_without_pip_gets_a_uv_command(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert install_command("a") == "uv pip install a"
    monkeypatch.setenv("PATH", "/nowhere")
    assert install_command("a") == f"uv pip install --python {environment}/bin/python a"
