"""What vlmkit-demo offers: the model named ``demo``, whose files lie beside this module.

The model is data only; whichever tokenizer, vision encoder and engine plugins are installed run it.
"""

from pathlib import Path

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)
NAME = "demo"


def _is_not_ours(reference: str) -> str | None:
    return None if reference == NAME else f"it has only the model {NAME!r}"


def _build(_: BuildContext) -> Checkpoint:
    return Checkpoint(NAME, Path(__file__).with_name("checkpoint"))


@hookimpl
def vlmkit_register_models(registry: Registry[Checkpoint]) -> None:
    """Offer the model ``demo``."""
    registry.add(
        NAME,
        _build,
        cannot_serve=_is_not_ours,
        description="a 4 M parameter model of shapes, colours, digits and words; works offline",
    )


def pictures() -> Path:
    """Return the folder of sample pictures: ``shapes.png``, ``word.jpg`` and ``digit.png``."""
    return Path(__file__).with_name("pictures")
