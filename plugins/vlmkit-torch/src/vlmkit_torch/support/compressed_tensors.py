"""Decides which checkpoints of compressed-tensors with quantized activations can run.

The package runs these; vlmkit-quantized reads those whose weights alone are quantized. Reads
``quantization_config`` and the headers of weight files, and imports nothing heavy.
``loading.decompression`` decompresses the layers.
"""

import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vlmkit.kit import safetensors_header
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import Objection

PACKAGE = "compressed-tensors"
MIN_VERSION = (0, 20)
FORMATS = frozenset(
    {
        "float-quantized",
        "int-quantized",
        "mxfp4-pack-quantized",
        "mxfp8-quantized",
        "naive-quantized",
        "nvfp4-pack-quantized",
        "pack-quantized",
    }
)
"""Supported formats of a group's weights."""

UNQUANTIZED = "load the model that it was made from"

# Parts of quantization_config that change what a model computes, and that are not implemented.
_PARTS = {
    "transform_config": "transforms of weights and activations",
    "moe_sparsity_config": "pruned experts",
}
# A scale of a whole tensor would depend on the other requests of a step.
_DYNAMIC_STRATEGIES = frozenset({"token", "group", "tensor_group"})
# Choices of the user, not of a file; and what earlier versions of the tool state of dense weights.
_DROPPED = frozenset({"run_compressed", "use_optimized_inference", "sparsity_config"})
_ACTIVATIONS = ("input_activations", "output_activations")
_STORED_TYPES = frozenset({"I8", "U8", "I32", "F8_E4M3"})
_EMBEDDING = re.compile(r"embed\w*\.weight_(packed|scale)$")
_HEAD = re.compile(r"lm_head\.weight_(packed|scale)$")
_EXPERT = re.compile(r"\.experts\.\d+\.")
# Families whose experts are layers in transformers; in others, they are one weight.
_EXPERTS_ARE_LAYERS = frozenset({"llama4", "llama4_text"})


def objection(checkpoint: Checkpoint, stated: Mapping[str, Any]) -> Objection | None:
    """Return why a checkpoint of compressed-tensors cannot run; None if it can."""
    reason = _config_reason(stated) or _weights_reason(checkpoint, stated)
    return None if reason is None else Objection(reason, hint=UNQUANTIZED)


def version_objection() -> Objection | None:
    """Return why the installed package cannot be used; None if it can."""
    version = importlib.metadata.version(PACKAGE)
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= MIN_VERSION:
        return None
    least = ".".join(map(str, MIN_VERSION))
    return Objection(
        f"{PACKAGE} {version} is installed, and {least} or later is needed",
        hint=install_command("vlmkit-torch[quantized]"),
    )


def normalized(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``quantization_config`` with which transformers loads the files correctly.

    Earlier versions of the tool state one format for all groups, and the status ``frozen`` for
    compressed weights.
    """
    groups = dict(_groups(stated))
    kept = {name: value for name, value in stated.items() if name not in _DROPPED}
    return {
        **kept,
        "config_groups": {n: {**g, "format": _format(stated, g)} for n, g in groups.items()},
        "quantization_status": "compressed",
    }


def plain_weights(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the names of weights that a checkpoint's files hold uncompressed."""
    stored = dict(_stored(checkpoint))
    for name in stored:
        if name.endswith(".weight") and f"{name}_scale" not in stored:
            yield name


def _config_reason(stated: Mapping[str, Any]) -> str | None:
    """Return what in ``quantization_config`` is not supported; None if everything is."""
    from vlmkit_quantized.compressed_tensors import is_sparse  # imports NumPy

    if is_sparse(stated):
        return "its quantization has sparse weights ('sparsity_config'), which are not supported"
    for name, what in _PARTS.items():
        if stated.get(name):
            return f"its quantization has {what} ({name!r}), which are not supported"
    groups, cache = stated.get("config_groups"), stated.get("kv_cache_scheme")
    if not isinstance(groups, Mapping) or not (groups or cache):
        return "its quantization_config has no 'config_groups', which say how it is quantized"
    for name, group in groups.items():
        if reason := _group_reason(stated, group):
            return f"its config group {name!r} {reason}"
    return _cache_reason(cache)


def _cache_reason(args: Any) -> str | None:
    """Return why the quantization of keys and values is not supported; None if it is."""
    if isinstance(args, Mapping) and args.get("dynamic"):
        return "its 'kv_cache_scheme' is dynamic, so that answers would depend on other requests"
    return None


def _group_reason(stated: Mapping[str, Any], group: Any) -> str | None:
    """Return the predicate of a sentence about an unsupported group; None if it is supported."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping) or not isinstance(group.get("targets"), list):
        return "quantizes no weights, which is not supported"
    if (stored := _format(stated, group)) not in FORMATS:
        return f"stores weights as {stored!r}, which is not supported"
    if _is_packed_asymmetric(stated, group):
        return "has asymmetric packed weights, which are not supported with quantized activations"
    if weights.get("actorder") in ("group", "dynamic"):
        return "orders weights by activations ('actorder'), which is not supported"
    return next(filter(None, map(_activations_reason, map(group.get, _ACTIVATIONS))), None)


def _activations_reason(args: Any) -> str | None:
    """Return the predicate of a sentence about unsupported activations; None if supported."""
    if not isinstance(args, Mapping) or not args.get("dynamic"):
        return None
    if args.get("strategy") in _DYNAMIC_STRATEGIES:
        return None
    return (
        f"computes the scale of activations for each {args.get('strategy')!r}, so that answers "
        "would depend on other requests"
    )


def _weights_reason(checkpoint: Checkpoint, stated: Mapping[str, Any]) -> str | None:
    """Return how the files contradict ``quantization_config``; None if they do not."""
    stored = dict(_stored(checkpoint))
    if stated["config_groups"] and _STORED_TYPES.isdisjoint(stored.values()):
        return "its quantization_config describes compressed weights, and its files have none"
    if any(map(_EMBEDDING.search, stored)):
        return "its embedding is quantized, which is not supported"
    if _is_tied(checkpoint) and any(map(_HEAD.search, stored)):
        return (
            "its head is quantized and is its embedding ('tie_word_embeddings'), which is not "
            "supported"
        )
    of_experts = {name for name in stored if _EXPERT.search(name)}
    if not of_experts or checkpoint.model_type in _EXPERTS_ARE_LAYERS:
        return None
    return _experts_reason(stated, of_experts)


def _is_tied(checkpoint: Checkpoint) -> bool:
    stated = checkpoint.answering
    text = stated.get("text_config")
    both = (stated, text if isinstance(text, Mapping) else {})
    return any(part.get("tie_word_embeddings") is True for part in both)


def _experts_reason(stated: Mapping[str, Any], names: set[str]) -> str | None:
    """Return why transformers cannot merge experts while it reads them; None if it can."""
    schemes = _expert_groups(stated)
    if any(group["weights"] != schemes[0]["weights"] for group in schemes[1:]):
        return "several of its config groups may be the one of its experts"
    weights, stored_as = schemes[0]["weights"], _format(stated, schemes[0])
    is_fp8 = weights.get("type") == "float" and weights.get("num_bits") == 8
    if is_fp8 and weights.get("strategy") in ("tensor", "channel"):
        return None
    is_packed = stored_as == "pack-quantized" and weights.get("symmetric", True)
    parts = {name.rpartition(".")[2] for name in names}
    if "weight_scale" not in parts or (is_packed and "weight" in parts):
        return "some of its experts are plain in its files and quantized by its config groups"
    if is_packed:
        return None
    kind = "" if weights.get("symmetric", True) else "asymmetric "
    strategy = weights.get("strategy")
    return f"its experts are {kind}{stored_as!r} by {strategy!r}, which is not supported"


def _expert_groups(stated: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the groups that transformers considers for the experts."""
    groups = [group for _, group in _groups(stated)]
    named = [g for g in groups if any("experts" in target for target in g["targets"])]
    by_class = [g for g in groups if any(not t.startswith("re:") for t in g["targets"])]
    return named or by_class or groups


def _groups(stated: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from stated["config_groups"].items()


def _format(stated: Mapping[str, Any], group: Mapping[str, Any]) -> Any:
    return group.get("format") or stated.get("format")


def _is_packed_asymmetric(stated: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    is_symmetric = group["weights"].get("symmetric", True)
    return _format(stated, group) == "pack-quantized" and not is_symmetric


def _stored(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield the name and the data type of each tensor in a checkpoint's files."""
    for file in safetensors_header.weights_of(checkpoint).files:
        header, _ = safetensors_header.read_header(checkpoint.path / file)
        for name, tensor in header.items():
            yield name, tensor.dtype
