"""Imports transformers without its advice to install PyTorch: the text side works without."""

import importlib
import logging


def import_transformers() -> None:
    """Import transformers, dropping what it says of an absent PyTorch."""
    logger = logging.getLogger("transformers")
    logger.addFilter(_is_not_advice)
    try:
        importlib.import_module("transformers.processing_utils")  # says it a second time
    finally:
        logger.removeFilter(_is_not_advice)


def _is_not_advice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("PyTorch was not found")
