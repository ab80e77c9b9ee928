"""Decides from small files which checkpoints can be served; imports nothing heavy."""

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable
from typing import Literal, get_args

from vlmkit.kit import weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import Objection, hint_of
from vlmkit_onnx.folder import export_cache, manifest
from vlmkit_onnx.folder.community import is_community

DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
NEEDED = (1, 31)
Kind = Literal["vlmkit", "genai", "community", "weights"]

DECODERS: tuple[export_cache.Part, ...] = (
    *get_args(manifest.Precision),
    *get_args(manifest.Stored),
)
"""The parts that hold a decoder."""
READY, TO_BE_EXPORTED = 20, 5
"""Above and below the 10 of vlmkit-torch: graphs run here, and weights run there."""


def why_not() -> str | None:
    """Return why this plugin cannot run here; None if it can."""
    if importlib.util.find_spec("onnxruntime") is None:
        return Objection(
            "onnxruntime is not installed",
            hint=f"{install_command('vlmkit-onnx[cpu]')}, or, for models without ONNX graphs, "
            f"{install_command('vlmkit-onnx[cpu,export]')}; for CUDA, gpu in place of cpu",
        )
    for distribution in DISTRIBUTIONS:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < NEEDED:
            wanted = ".".join(map(str, NEEDED))
            extra = "cpu" if distribution == "onnxruntime" else "gpu"
            return Objection(
                f"{distribution} {version} found, {wanted} needed",
                hint=install_command(f"vlmkit-onnx[{extra}]"),
            )
    return None


def kind_of(checkpoint: Checkpoint) -> Kind | None:
    """Return the exporter of a model, or that it has weights; None if there is neither."""
    if checkpoint.has(manifest.FILE):
        return "vlmkit"
    if checkpoint.has("genai_config.json"):
        return "genai"
    if is_community(checkpoint):
        return "community"
    has_weights = checkpoint.has("*.safetensors") or weight_files.gguf_file(checkpoint) is not None
    return "weights" if has_weights else None


def engine_cannot_serve(checkpoint: Checkpoint) -> str | None:
    """Return why the engine cannot run this checkpoint; None if it probably can."""
    return _lacks_graphs(checkpoint, DECODERS)


def encoder_cannot_serve(checkpoint: Checkpoint) -> str | None:
    """Return why the vision encoder cannot run this checkpoint; None if it probably can."""
    has_config = isinstance(checkpoint.config.get("vision_config"), dict)
    towers = ("onnx/vision_encoder*.onnx", "vision_encoder*.onnx", "genai_config.json")
    has_graph = any(map(checkpoint.has, towers))
    if not has_config and not has_graph:
        return weight_files.absent_tower(checkpoint)
    if reason := weight_files.objection_to_pictures(checkpoint):
        return reason
    return _lacks_graphs(checkpoint, export_cache.TOWERS.values())


def priority(checkpoint: Checkpoint) -> int:
    """Return the priority of this plugin for a checkpoint if ``auto`` selects."""
    return TO_BE_EXPORTED if kind_of(checkpoint) in ("weights", None) else READY


def _lacks_graphs(checkpoint: Checkpoint, parts: Iterable[export_cache.Part]) -> str | None:
    """Return why there are no graphs and none can be exported; one finished part suffices."""
    kind = kind_of(checkpoint)
    if kind is None:
        flaw = weight_files.objection(checkpoint)
        return Objection(f"there are no ONNX graphs, and {flaw}", hint=hint_of(flaw))
    if kind != "weights" or any(export_cache.finished(checkpoint, part) for part in parts):
        return None
    is_gguf = weight_files.gguf_file(checkpoint) is not None  # the exporter examines it
    if not is_gguf and (flaw := weight_files.objection(checkpoint)):
        return flaw
    if not export_cache.missing_packages():
        return None
    return Objection(
        "there are no ONNX graphs, and the exporter, which makes them, is not installed",
        hint=export_cache.install_hint(),
    )
