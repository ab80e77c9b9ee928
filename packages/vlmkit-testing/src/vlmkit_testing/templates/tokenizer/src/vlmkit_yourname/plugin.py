"""Offers a tokenizer for models whose folder has a ``characters.json``."""

import vlmkit
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)
NAME = "yourname"


def _cannot_serve(checkpoint: Checkpoint) -> str | None:
    if checkpoint.model_type != NAME:
        return f"it serves only models of type {NAME!r}"
    return None if checkpoint.has("characters.json") else "the model has no characters.json"


def _build(context: BuildContext) -> Tokenizer:
    from vlmkit_yourname.tokenizer import CharacterTokenizer, characters_of

    return CharacterTokenizer(characters_of(context.files))


@vlmkit.hookimpl
def vlmkit_register_tokenizers(registry: Registry[Tokenizer]) -> None:
    """Offer ``tokenizer.use = "yourname"``; ``auto`` takes it for its own models."""
    registry.add(
        NAME, _build, cannot_serve=_cannot_serve, description="characters, and bytes of all others"
    )
