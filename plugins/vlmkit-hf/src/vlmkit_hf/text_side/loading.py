"""Loads a checkpoint's tokenizer with transformers, or reports the real reason of a failure."""

import importlib
import logging
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.config_bounds import failed_field
from vlmkit_hf.templates.sources import templates_in_files
from vlmkit_hf.text_side.files import FETCH_HINT


def import_transformers() -> None:
    """Import transformers and drop its advice to install PyTorch: the text side needs none."""
    logger = logging.getLogger("transformers")
    logger.addFilter(_is_not_advice)
    try:
        importlib.import_module("transformers.processing_utils")  # repeats the advice
    finally:
        logger.removeFilter(_is_not_advice)


def _is_not_advice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("PyTorch was not found")


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """Return a checkpoint's tokenizer. Runs none of its code and fetches nothing.

    Raises:
        CheckpointError: the checkpoint has no tokenizer that can be loaded.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers may raise anything
        raise _reason(checkpoint) from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise CheckpointError(
            f"the tokenizer of {checkpoint.name!r} has no fast form",
            hint="its folder needs tokenizer.json",
        )
    _check_encoding(tokenizer.backend_tokenizer, checkpoint)
    return tokenizer


def _check_encoding(backend: Any, checkpoint: Checkpoint) -> None:
    """Encode a short text; a tokenizer whose parts do not match fails at that.

    Raises:
        CheckpointError: encoding fails, or panics in Rust.
    """
    try:
        backend.encode("a", add_special_tokens=True)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic is not an Exception
        raise CheckpointError(
            f"'tokenizer.json' of model {checkpoint.name!r} cannot encode a text: its parts do not "
            "belong together",
            hint=FETCH_HINT,
        ) from error


def _reason(checkpoint: Checkpoint) -> CheckpointError:
    """Return why transformers could not load a tokenizer: often another file is at fault."""
    owner = checkpoint.name
    try:
        templates_in_files(checkpoint)  # transformers reads them with the tokenizer
    except CheckpointError as error:
        return error
    settings = checkpoint.read_json("tokenizer_config.json")
    if (flaw := _config_flaw(checkpoint)) is not None:
        return CheckpointError(
            f"config.json of model {owner!r} is not one that transformers can read{flaw}",
            hint="compare it with that of the model's authors; the log shows what is wrong",
        )
    if "AutoTokenizer" in (settings.get("auto_map") or ()):
        return CheckpointError(
            f"the tokenizer of model {owner!r} is defined by code in the checkpoint, which is "
            "never run",
            hint="there may be a conversion of the model to what transformers defines",
        )
    if checkpoint.has("tokenizer.json") and not _is_valid(checkpoint):
        return CheckpointError(
            f"'tokenizer.json' of model {owner!r} is not the file of a tokenizer", hint=FETCH_HINT
        )
    return CheckpointError(
        f"model {owner!r} has no tokenizer that transformers can load", hint=FETCH_HINT
    )


def _config_flaw(checkpoint: Checkpoint) -> str | None:
    """Return which field of config.json is wrong, as the end of a sentence; None if none is."""
    from transformers import AutoConfig

    if not checkpoint.has("config.json"):
        return None  # a tokenizer alone needs no config
    try:
        AutoConfig.from_pretrained(checkpoint.path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - of whatever kind: it cannot be read
        field = failed_field(error)
        return f": its field {field!r} is wrong" if field else ""
    return None


def _is_valid(checkpoint: Checkpoint) -> bool:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(checkpoint.path / "tokenizer.json"))
    except Exception:  # noqa: BLE001 - of whatever kind: it cannot be read
        return False
    return True
