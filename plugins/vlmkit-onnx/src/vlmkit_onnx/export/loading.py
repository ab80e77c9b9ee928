"""Loads a checkpoint for export: safetensors only, no remote code, no network, nothing missing.

Weights stay in the checkpoint's own type and in its mapped files: whoever needs them otherwise
converts them one module at a time.
"""

from transformers import PretrainedConfig, PreTrainedModel

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.export.refusal import OTHERWISE, mechanism_of
from vlmkit_torch.loading.reading import read_config, read_model


def load(checkpoint: Checkpoint) -> PreTrainedModel:
    """Return the model on the CPU, in the types of its files.

    Raises:
        CheckpointError: the family cannot be exported, or the checkpoint is broken.
        EngineError: there is not so much memory.
    """
    return read_model(checkpoint, exportable_config(checkpoint), "auto")


def exportable_config(checkpoint: Checkpoint) -> PretrainedConfig:
    """Return a checkpoint's configuration.

    Raises:
        CheckpointError: its decoder cannot be exported.
    """
    config = read_config(checkpoint)
    if reason := mechanism_of(config.get_text_config().to_dict()):
        raise CheckpointError(
            f"model {checkpoint.name!r} cannot be exported: {reason}", hint=OTHERWISE
        )
    return config
