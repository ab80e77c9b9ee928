"""Reads a checkpoint through transformers: safetensors only, no remote code, no missing weights.

The model stays on the CPU with mapped weights. Chooses neither device nor precision.
"""

import copy
import logging
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)
from transformers.utils import logging as transformers_logging

from vlmkit.errors import CheckpointError
from vlmkit.kit import safetensors_header
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.config_bounds import failed_field
from vlmkit.kit.one_line import named
from vlmkit_quantized import formats
from vlmkit_torch.devices import faults
from vlmkit_torch.loading.packed_layers import PackedLayers, packed_layers
from vlmkit_torch.loading.reader_choice import Reader, own_reader_of
from vlmkit_torch.loading.supplied_weights import SuppliedWeights
from vlmkit_torch.support import quantization
from vlmkit_torch.support.compressed_tensors import UNQUANTIZED
from vlmkit_torch.support.packed_forms import Packing
from vlmkit_torch.support.refusal import layer_objection
from vlmkit_torch.support.transformers_source import ANOTHER

logger = logging.getLogger(__name__)

# Names of weights that scale or extend others, which are wrong without them.
SCALES = re.compile(r"(weight_scale|scale_inv|scale_2|\.scales|absmax|\.SCB|zero_points?|qzeros)$")
MAX_PACKED = 16  # weights in one stored number: 32 bits hold 16 weights of 2 bits
MAX_TIED = 2  # weights that share one stored tensor
MIN_BUFFER_NUMBERS = 2**26
ADDITIONS = re.compile(r"\.lora_[AB]\b")


def read_config(checkpoint: Checkpoint, reader: Reader | None = None) -> PretrainedConfig:
    """Return the configuration of the part of a checkpoint that answers, as transformers reads it.

    Args:
        checkpoint: its files.
        reader: of its weights; None means that of this plugin, if they are quantized.

    Raises:
        CheckpointError: transformers does not know the family or cannot read the file.
    """
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            checkpoint.path, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        field = failed_field(error)
        raise CheckpointError(
            f"config.json of model {checkpoint.name!r} is not one that transformers can read"
            + (f": its field {field!r} is wrong" if field else ""),
            hint="compare it with that of the model's authors; the log shows what is wrong",
        ) from error
    config = _answering(config)
    reader = reader or own_reader_of(checkpoint)
    stated = getattr(config, "quantization_config", None)
    if stated is not None and reader is not None:
        own = reader.call("transformers_config", reader.reader.transformers_config, stated)
        if own is None:
            del config.quantization_config
        else:
            config.quantization_config = own
    return config


def _answering(config: PretrainedConfig) -> PretrainedConfig:
    """Return the part of a configuration that answers: the thinker's, if there is one.

    The storage of weights is stated for the whole model.
    """
    thinker: PretrainedConfig | None = getattr(config, "thinker_config", None)
    if thinker is None:
        return config
    for name in ("dtype", "quantization_config"):
        if getattr(thinker, name, None) is None and getattr(config, name, None) is not None:
            setattr(thinker, name, getattr(config, name))
    return thinker


def read_model(
    checkpoint: Checkpoint,
    config: PretrainedConfig,
    dtype: torch.dtype | str,
    reader: Reader | None = None,
    packing: Packing | None = None,
) -> PreTrainedModel:
    """Return the model on the CPU.

    Args:
        checkpoint: its files.
        config: from :func:`read_config`.
        dtype: of the weights; ``auto`` is that of the files.
        reader: as for :func:`read_config`.
        packing: how quantized layers are packed; None expands them.

    Raises:
        CheckpointError: the family is not supported, or weights are absent, have the wrong shape
            or need a package that is not installed.
        EngineError: there is too little memory.
    """
    auto = auto_class(checkpoint, config)
    _refuse_larger(checkpoint, config, auto)
    reader = reader or own_reader_of(checkpoint)
    layers = None
    if packing is not None:
        layers = packed_layers(checkpoint, config, auto, packing, dtype)
    supplied = _supplied(checkpoint, config, reader, layers)
    try:
        with _without_bar(), _reading(reader):
            if reader is not None:
                reader.call("prepare", reader.reader.prepare, auto, config)
            model, report = _from_pretrained(auto, checkpoint, supplied, config=config, dtype=dtype)
    except Exception as error:
        if failure := faults.device_error_at_load(error, torch.device("cpu")):
            raise failure from error
        if supplied is not None and supplied.failure is not None:
            raise supplied.failure from error
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"the weights of model {checkpoint.name!r} could not be loaded: {named(error)}",
            hint=_hint(config),
        ) from error
    if supplied is not None and supplied.failure is not None:
        raise supplied.failure
    _refuse_gaps(checkpoint, report)
    if layers is not None:
        layers.install(model)
    if reader is not None:
        reader.call("finish", reader.reader.finish, model)
    model.eval().requires_grad_(requires_grad=False)  # type: ignore[no-untyped-call]
    return model


def _hint(config: PretrainedConfig) -> str:
    """Return a hint for weights that transformers fails to load."""
    stated = getattr(config, "quantization_config", None)
    if not isinstance(stated, dict):
        return "`vlmkit --debug ...` shows why; please report the model"
    method = stated.get("quant_method")
    return (
        f"transformers does not load weights by {method!r} of this family; {UNQUANTIZED}; "
        "`vlmkit --debug ...` shows why"
    )


def auto_class(checkpoint: Checkpoint, config: PretrainedConfig) -> Any:
    """Return the class that loads a model of this family.

    Raises:
        CheckpointError: it is not supported.
    """
    if config.is_encoder_decoder:
        raise CheckpointError(
            f"model {checkpoint.name!r} is an encoder-decoder, not supported", hint=ANOTHER
        )
    for name in getattr(config.get_text_config(), "layer_types", None) or ():
        if reason := layer_objection(name):
            raise CheckpointError(f"model {checkpoint.name!r}: {reason}", hint=reason.hint)
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForImageTextToText
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    raise CheckpointError(
        f"model {checkpoint.name!r} of type {config.model_type!r} generates no text that "
        "transformers knows of",
        hint=ANOTHER,
    )


def _from_pretrained(
    auto: Any, checkpoint: Checkpoint, supplied: SuppliedWeights | None, **more: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a model and the report of transformers on its weights."""
    source: dict[str, Any] = {"pretrained_model_name_or_path": checkpoint.path}
    if supplied is not None:
        source = {"pretrained_model_name_or_path": None, "state_dict": supplied.state_dict()}
        with torch.device("meta"):  # an automatic class needs a folder, that of the family does not
            auto = type(auto.from_config(copy.deepcopy(more["config"])))
    loaded: tuple[PreTrainedModel, dict[str, Any]] = auto.from_pretrained(
        **source,
        **more,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # refused later, by name
    )
    return loaded


def _supplied(
    checkpoint: Checkpoint,
    config: PretrainedConfig,
    reader: Reader | None,
    layers: PackedLayers | None,
) -> SuppliedWeights | None:
    """Return the weights that a reader supplies; None if transformers reads all of them."""
    if reader is None or getattr(config, "quantization_config", None) is not None:
        return None
    return SuppliedWeights(checkpoint, reader, layers)


def _reading(reader: Reader | None) -> AbstractContextManager[None]:
    return nullcontext() if reader is None else reader.call("reading", reader.reader.reading)


@contextmanager
def _without_bar() -> Iterator[None]:
    """Hide progress bars of libraries, because callers show the stages."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _refuse_larger(checkpoint: Checkpoint, config: PretrainedConfig, auto: Any) -> None:
    """Refuse a configuration of a far larger model than the weights, before it takes memory.

    Loading would first create weights at random that are absent or have other shapes.

    Raises:
        CheckpointError: the configuration has too many weights.
    """
    try:
        with torch.device("meta"):
            model = auto.from_config(copy.deepcopy(config))
    except Exception as error:  # noqa: BLE001 - loading reports the cause
        logger.debug("model %r cannot be measured: %s", checkpoint.name, type(error).__name__)
        return
    stored = _num_stored(checkpoint)
    factor = MAX_PACKED if quantization.method_of(checkpoint) is not None else MAX_TIED
    wanted = sum(weight.numel() for weight in model.parameters())
    made = sum(buffer.numel() for buffer in model.buffers())
    if wanted > factor * stored or made > max(MIN_BUFFER_NUMBERS, factor * stored):
        raise CheckpointError(
            f"config.json of model {checkpoint.name!r} is of a model of {wanted:,} weights and "
            f"{made:,} constants, and its files hold {stored:,}",
            hint="its config.json and its weights are not of the same model",
        )


def _num_stored(checkpoint: Checkpoint) -> int:
    """Return the number of elements in the files."""
    if quantization.method_of(checkpoint) == quantization.GGUF:
        return formats.summary_of(checkpoint).num_weights
    return safetensors_header.weights_of(checkpoint).num_parameters


def _refuse_gaps(checkpoint: Checkpoint, report: dict[str, Any]) -> None:
    """Refuse missing weights: they would be random, and so would every answer."""
    for kind, what in (("missing_keys", "lacks"), ("mismatched_keys", "has the wrong shape for")):
        if names := sorted(map(_name_of, report.get(kind) or ())):
            raise CheckpointError(
                f"model {checkpoint.name!r} {what} {len(names)} weights, such as {names[0]!r}",
                hint="its config.json and its weights are not of the same model, or some were lost",
            )
    unused = sorted(map(str, report.get("unexpected_keys") or ()))
    if scales := [name for name in unused if SCALES.search(name) or ADDITIONS.search(name)]:
        raise CheckpointError(
            f"model {checkpoint.name!r} has {len(scales)} weights that belong to others and are "
            f"not used, such as {scales[0]!r}",
            hint="it is quantized or adapted in a way that config.json does not say; load the "
            "model that it was made from",
        )
    if unused:
        logger.warning(
            "model %r has %d weights that are not used, such as %r",
            *(checkpoint.name, len(unused), unused[0]),
        )


def _name_of(key: Any) -> str:
    """Return a weight's name from a report's key, which may include shapes."""
    return str(key[0] if isinstance(key, tuple) else key)
