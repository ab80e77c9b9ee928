"""Has the text side written down, so that a model starts without what only its text side needs.

Prompts are another plugin's business. This asks it, and goes on without: a model whose text side is
not kept is served all the same.
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
    """Ask the tokenizer of a model to keep what it finds out.

    Args:
        context: what all plugins offer.
        checkpoint: the model's files.
        folder: the model's own, where it is being made; None is the user's cache folder.
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
