"""A small model, and what runs it: hooks only, the parts are imported when one of them is built."""

from pathlib import Path

import vlmkit
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_yourname.settings import BytePairSettings

VLMKIT_API = (1, 0)
NAME = "yourname"


def _cannot_serve(checkpoint: Checkpoint) -> str | None:
    return None if checkpoint.model_type == NAME else f"it serves only models of type {NAME!r}"


def _build_tokenizer(_: BuildContext) -> Tokenizer:
    from vlmkit_yourname.tokenizer import ByteTokenizer

    return ByteTokenizer()


def _build_engine(context: BuildContext) -> Engine:
    from vlmkit_yourname.engine import BytePairEngine, lines_of

    return BytePairEngine(lines_of(context.files), context.settings)


@vlmkit.hookimpl
def vlmkit_register_models(registry: Registry[Checkpoint]) -> None:
    """Offer the model ``yourname``."""
    folder = Path(__file__).with_name("model")
    registry.add_packaged(NAME, folder, description="knows three lines by heart")


@vlmkit.hookimpl
def vlmkit_register_tokenizers(registry: Registry[Tokenizer]) -> None:
    """Offer ``tokenizer.use = "yourname"``."""
    registry.add(NAME, _build_tokenizer, cannot_serve=_cannot_serve)


@vlmkit.hookimpl
def vlmkit_register_engines(registry: Registry[Engine]) -> None:
    """Offer ``engine.use = "yourname"``."""
    registry.add(
        NAME,
        _build_engine,
        cannot_serve=_cannot_serve,
        settings=BytePairSettings,
        description="knows which byte follows which two",
    )
