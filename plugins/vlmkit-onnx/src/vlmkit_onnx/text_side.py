"""Stores the text side of a model, so that it starts without the libraries of its tokenizer.

The tokenizer's plugin writes it. If that fails, the model is served without a stored text side.
"""

import logging
from dataclasses import replace
from pathlib import Path

from vlmkit.errors import PluginError, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.kinds import TOKENIZER
from vlmkit.plugins.registry import BuildContext

log = logging.getLogger(__name__)


def keep(context: BuildContext, checkpoint: Checkpoint, folder: Path | None = None) -> None:
    """Let the tokenizer of a model store its text side.

    Args:
        context: the providers of plugins.
        checkpoint: the model's files.
        folder: of the model that is being exported; None is the user's cache folder.
    """
    registry = context.registries.get(TOKENIZER.plural)
    if registry is None:
        return
    try:
        provider = registry.choose("auto", checkpoint)
    except PluginError:
        return
    if provider.keep is None:
        return
    try:
        reason = provider.keep(replace(context, checkpoint=checkpoint, settings=None), folder)
    except (VlmkitError, OSError, RuntimeError) as error:
        reason = str(error)
    if reason is not None:
        log.warning("the text side of model %r is not kept: %s", checkpoint.name, reason)
