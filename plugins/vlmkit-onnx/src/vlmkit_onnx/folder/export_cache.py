"""Names the folders of exports that were made for serving, and finds existing ones.

Exports nothing. Needs no torch to find an export: the folder's name is derived from what every
installation knows, above all the content of the checkpoint's files. Two fine-tunes may have equal
sizes and times. The name excludes versions of torch and transformers: a graph that was checked when
it was exported stays valid. The manifest records the versions.
"""

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from vlmkit.errors import PluginUnavailable
from vlmkit.kit import content, user_cache
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit_onnx.folder.manifest import FILE, FORMAT, Precision, TowerPrecision

Part = Precision | Literal["tower", "tower-w8a8", "tower-fp32"]
"""What one export holds: the decoder, or the tower in a precision or as few bits as fit."""

TOWERS: Mapping[TowerPrecision | None, Part] = MappingProxyType(
    {None: "tower", "w8a8": "tower-w8a8", "fp32": "tower-fp32"}
)
VISION = "vision.onnx"
EXPORTER_NEEDS = (
    "vlmkit_torch",
    "torch",
    "transformers",
    "onnxscript",
    "onnx_ir",
    "safetensors",
    "onnxruntime",
)
SHAPE_CHARS = 16


def cached_folder(checkpoint: Checkpoint, part: Part) -> Path:
    """Return the folder of the export of a checkpoint's part; import nothing heavy.

    Its name depends on the content of all files of the checkpoint, which are read at the first
    call.
    """
    return _cache_root() / f"{_shape(checkpoint, part)}-{checkpoint.fingerprint}"


def finished(checkpoint: Checkpoint, part: Part) -> Path | None:
    """Return the folder of a finished export; None if there is none, or for a preview.

    Reads no weights unless a checkpoint with equal names and sizes of files was exported.
    """
    if checkpoint.is_preview or not any(_cache_root().glob(f"{_shape(checkpoint, part)}-*")):
        return None
    folder = cached_folder(checkpoint, part)
    return folder if is_whole(folder) else None


def _shape(checkpoint: Checkpoint, part: Part) -> str:
    """Return the first part of an export's name, which depends on no weights."""
    digest = hashlib.sha256()
    version = importlib.metadata.version("vlmkit-onnx")
    for fact in (part, str(FORMAT), version, *content.sizes(checkpoint.path).items()):
        digest.update(f"{fact}\n".encode())
    for path in _exporter_sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:SHAPE_CHARS]


def is_whole(folder: Path) -> bool:
    """Return whether a folder holds a finished export; unfinished ones have other names."""
    return (folder / FILE).is_file() or (folder / VISION).is_file()


def missing_packages() -> list[str]:
    """Return the exporter's packages that are not installed; import nothing."""
    return [name for name in EXPORTER_NEEDS if importlib.util.find_spec(name) is None]


def install_hint() -> str:
    """Return the command that installs the exporter."""
    return install_command("vlmkit-onnx[export]")


def refuse_without_exporter() -> None:
    """Refuse an export if the exporter is not installed.

    Raises:
        PluginUnavailable: packages of the exporter are missing.
    """
    if missing := missing_packages():
        raise PluginUnavailable(
            f"to export a model to ONNX, {', '.join(missing)} must be installed",
            hint=install_hint(),
        )


def _cache_root() -> Path:
    return user_cache.folder() / "onnx"


def _exporter_sources() -> list[Path]:
    """Return the exporter's source files, on which the exported graphs depend."""
    return sorted((Path(__file__).parents[1] / "export").rglob("*.py"))
