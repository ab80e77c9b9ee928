"""Where models that were exported on the way to being served are kept; making them is not its job.

An export is found again without torch: its name is made of what every installation knows, above
all the content of the checkpoint's files: two fine-tunes may have equal sizes and times. Versions
of torch and transformers are no part of it, since the graph that was checked when it was made
stays what it is; the manifest records them.
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
"""What is exported apart: the decoder, or the vision tower, in some precision or as it fits."""

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
    """Return where the export of a checkpoint's part is or would be; imports nothing heavy.

    Its name follows the content of the checkpoint's files, which are all read the first time.
    """
    return _cache_root() / f"{_shape(checkpoint, part)}-{checkpoint.fingerprint}"


def finished(checkpoint: Checkpoint, part: Part) -> Path | None:
    """Return where the export of a checkpoint's part is; None where it is yet to be made.

    Reads no weights unless files of equal names and sizes were exported: only then it has to. Of a
    preview nobody knows.
    """
    if checkpoint.is_preview or not any(_cache_root().glob(f"{_shape(checkpoint, part)}-*")):
        return None
    folder = cached_folder(checkpoint, part)
    return folder if is_whole(folder) else None


def _shape(checkpoint: Checkpoint, part: Part) -> str:
    """Return what an export's name begins with: all that shows without reading weights."""
    digest = hashlib.sha256()
    version = importlib.metadata.version("vlmkit-onnx")
    for fact in (part, str(FORMAT), version, *content.sizes(checkpoint.path).items()):
        digest.update(f"{fact}\n".encode())
    for path in _exporter_sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:SHAPE_CHARS]


def is_whole(folder: Path) -> bool:
    """Tell whether a folder holds an export; one gets its name when it is finished."""
    return (folder / FILE).is_file() or (folder / VISION).is_file()


def missing_packages() -> list[str]:
    """Return what the exporter needs and is not installed; imports nothing."""
    return [name for name in EXPORTER_NEEDS if importlib.util.find_spec(name) is None]


def install_hint() -> str:
    """Return how the exporter is installed."""
    return install_command("vlmkit-onnx[export]")


def refuse_without_exporter() -> None:
    """Say what to install.

    Raises:
        PluginUnavailable: the exporter's packages are not all there.
    """
    if missing := missing_packages():
        raise PluginUnavailable(
            f"to export a model to ONNX, {', '.join(missing)} must be installed",
            hint=install_hint(),
        )


def _cache_root() -> Path:
    return user_cache.folder() / "onnx"


def _exporter_sources() -> list[Path]:
    """Return the exporter's own files: what it makes changes when they do."""
    return sorted((Path(__file__).parents[1] / "export").rglob("*.py"))
