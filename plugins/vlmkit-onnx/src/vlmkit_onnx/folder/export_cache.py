"""Names the folders of exports that were made for serving, and finds existing ones.

Exports nothing. Needs no torch to find an export: the folder's name is derived from what every
installation knows, above all the content of the checkpoint's files. Two fine-tunes may have equal
sizes and times. The name excludes versions of vlmkit, torch and transformers: a graph that was
checked when it was exported stays valid until :data:`REVISION` changes. The manifest records the
versions.
"""

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

from vlmkit.errors import CheckpointError, PluginUnavailable
from vlmkit.kit import content, user_cache
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit_onnx.folder.layout import own_tower
from vlmkit_onnx.folder.manifest import FILE, FORMAT, Precision, Stored, TowerPrecision, read

Part = Precision | Stored | Literal["tower", "tower-w8a8", "tower-fp32"]
"""What one export holds: the decoder, or the tower in a precision or as few bits as fit."""

TOWERS: Mapping[TowerPrecision | None, Part] = MappingProxyType(
    {None: "tower", "w8a8": "tower-w8a8", "fp32": "tower-fp32"}
)
VISION = "vision.onnx"
REVISION = 1
"""The revision of exported graphs.

A change of the exporter raises it if existing graphs must not be used any more.
"""
EXPORTER_NEEDS = (
    "vlmkit_quantized",
    "vlmkit_torch",
    "torch",
    "transformers",
    "onnxscript",
    "onnx_ir",
    "safetensors",
    "onnxruntime",
)
SHAPE_CHARS = 16
EARLY_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]+")


def cached_folder(checkpoint: Checkpoint, part: Part) -> Path:
    """Return the folder of the export of a checkpoint's part; import nothing heavy.

    Its name depends on the content of all files of the checkpoint, which are read at the first
    call.
    """
    return _cache_root() / f"{_shape(checkpoint, part)}-{checkpoint.fingerprint}"


def finished(checkpoint: Checkpoint, part: Part) -> Path | None:
    """Return the folder of a finished export; None if there is none, or for a preview.

    Reads no weights unless a checkpoint with equal names and sizes of files was exported, or an
    early version exported any checkpoint.
    """
    if checkpoint.is_preview:
        return None
    if any(_cache_root().glob(f"{_shape(checkpoint, part)}-*")):
        folder = cached_folder(checkpoint, part)
        if is_whole(folder):
            return folder
    return _early_export(checkpoint, part)


def _shape(checkpoint: Checkpoint, part: Part) -> str:
    """Return the first part of an export's name, which depends on no weights."""
    facts = (part, str(FORMAT), *content.sizes(checkpoint.path).items())
    text = "".join(f"{fact}\n" for fact in facts)
    return f"r{REVISION}{hashlib.sha256(text.encode()).hexdigest()[:SHAPE_CHARS]}"


def _early_export(checkpoint: Checkpoint, part: Part) -> Path | None:
    """Return an export whose name has no revision, by its content; None if there is none.

    Early versions put a digest of the exporter's sources into the name. Their graphs are those of
    revision 1. The folder of a tower does not say whether its precision was requested, so one that
    is not rounded serves only requests for fp32.
    """
    if REVISION > 1:
        return None
    early = [f for f in _cache_root().glob("*-*") if EARLY_NAME.fullmatch(f.name) and is_whole(f)]
    of_checkpoint = [f for f in early if f.name.endswith(f"-{checkpoint.fingerprint}")]
    return next((folder for folder in of_checkpoint if part in _parts_of(folder)), None)


def _parts_of(folder: Path) -> tuple[Part, ...]:
    """Return what a finished export may be used for; nothing if it is broken."""
    try:
        if (folder / FILE).is_file():
            stated = read(folder).precision
            return tuple(part for part in get_args(Precision) if part == stated)
        is_rounded = own_tower(folder / VISION).precision == "w8a8"
    except CheckpointError:
        return ()
    return ("tower", "tower-w8a8") if is_rounded else ("tower-fp32",)


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
