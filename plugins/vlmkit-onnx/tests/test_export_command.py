"""``vlmkit export`` on the command line: output, errors and progress."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import vlmkit
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.errors import CheckpointError, PluginUnavailable
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit.plugins.registry import BuildContext, Provider
from vlmkit.settings.plugins import PluginSettings
from vlmkit_onnx import text_side
from vlmkit_onnx.export.command import Progress, export_command, warnings_of
from vlmkit_onnx.folder import export_cache, manifest
from vlmkit_testing import CommandContract


class TestExport(CommandContract):
    name = "export"

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "made"

    def fails(self) -> tuple[tuple[str, ...], ...]:
        return (("./nobody-has-this", str(self.folder)),)


def test_without_the_exporters_packages_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(export_cache, "missing_packages", lambda: ["torch", "onnxscript"])
    result = CliRunner().invoke(
        export_command(BuildContext()), ["somewhere", str(tmp_path / "out")]
    )
    assert isinstance(result.exception, PluginUnavailable)
    assert str(result.exception) == "to export a model to ONNX, torch, onnxscript must be installed"
    assert result.exception.hint == install_command("vlmkit-onnx[export]")


def test_an_unknown_precision_is_a_usage_error(tmp_path: Path) -> None:
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
    offered = BuildContext(registries=load_plugins(PluginSettings()).by_kind)
    result = CliRunner().invoke(
        export_command(offered),
        [str(tmp_path / "model"), str(tmp_path / "out"), "--precision", "int8"],
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'out'}\n"
    assert "converting layers\n" in result.stderr
    assert manifest.read(tmp_path / "out").precision == "int8"
    assert (tmp_path / "out" / "vlmkit_text.json").is_file()


@pytest.mark.torch
def test_exporting_an_export_is_refused(exported: Callable[[str], Path], tmp_path: Path) -> None:
    result = CliRunner().invoke(
        export_command(BuildContext()), [str(exported("llama")), str(tmp_path / "out")]
    )
    assert isinstance(result.exception, CheckpointError)
    assert "it is an export of ONNX graphs, which hold its weights" in str(result.exception)
    assert result.exception.hint == "name the model it is of"
    assert not (tmp_path / "out").exists()


@pytest.mark.torch
def test_an_export_without_its_tokenizer_reports_the_tokenizer(
    exported: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(exported("llama"), tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(PluginUnavailable, match=r"the model's folder has no tokenizer\.json"):
        vlmkit.load(folder)


class _Tokenizers:
    """A tokenizer plugin that cannot save its text side."""

    def choose(self, _: str, __: object) -> Provider[object]:
        return Provider("some", lambda _: object(), keep=lambda _, __: "it cannot be described")


def test_warnings_of_an_export_are_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    context = BuildContext(registries={"tokenizers": _Tokenizers()})  # type: ignore[dict-item]
    caplog.set_level(logging.CRITICAL)  # as on the command line
    with Progress() as progress, warnings_of("vlmkit_onnx", progress.tell):
        text_side.keep(context, Checkpoint("m", tmp_path), tmp_path)
    text_side.keep(context, Checkpoint("m", tmp_path), tmp_path)

    wanted = "warning: the text side of model 'm' is not kept: it cannot be described\n"
    assert capsys.readouterr().err == wanted


def test_progress_without_a_terminal_is_a_line_for_each_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress() as progress:
        for stage in ("reading weights", "converting layers 1/2", "converting layers 2/2", "end"):
            progress(stage)
    assert capsys.readouterr().err == "reading weights\nconverting layers\nend\n"
