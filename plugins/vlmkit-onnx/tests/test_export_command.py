"""``vlmkit export`` from a user's side."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from vlmkit.assembly import load_plugins
from vlmkit.config import Config
from vlmkit.errors import PluginUnavailable
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.export.command import Progress, export_command
from vlmkit_onnx.folder import export_cache, manifest


def test_without_the_exporters_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(export_cache, "missing_packages", lambda: ["torch", "onnxscript"])
    result = CliRunner().invoke(
        export_command(BuildContext()), ["somewhere", str(tmp_path / "out")]
    )
    assert isinstance(result.exception, PluginUnavailable)
    assert str(result.exception) == "to export a model to ONNX, torch, onnxscript must be installed"
    assert result.exception.hint == "pip install vlmkit-onnx[export]"


def test_a_precision_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        export_command(BuildContext()), ["m", str(tmp_path / "out"), "--precision", "int3"]
    )
    assert result.exit_code == 2
    assert "'int3' is not one of" in result.output


@pytest.mark.torch
def test_a_folder_becomes_a_folder_of_graphs(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    import zoo

    zoo.save("llama", tmp_path / "model")
    offered = BuildContext(registries=load_plugins(Config()).by_kind)
    result = CliRunner().invoke(
        export_command(offered),
        [str(tmp_path / "model"), str(tmp_path / "out"), "--precision", "int8"],
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'out'}\n"
    assert "converting layers\n" in result.stderr
    assert manifest.read(tmp_path / "out").precision == "int8"
    assert (tmp_path / "out" / "vlmkit_text.json").is_file()


def test_progress_without_a_terminal_is_a_line_for_each_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress() as progress:
        for stage in ("reading weights", "converting layers 1/2", "converting layers 2/2", "end"):
            progress(stage)
    assert capsys.readouterr().err == "reading weights\nconverting layers\nend\n"
