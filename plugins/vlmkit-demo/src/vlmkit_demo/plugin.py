"""The hooks of vlmkit-demo: the model named ``demo``, whose files are beside this module.

The model is data only. The installed tokenizer, vision encoder and engine plugins run it.
"""

from pathlib import Path

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import Registry

VLMKIT_API = (1, 0)
NAME = "demo"


@hookimpl
def vlmkit_register_models(registry: Registry[Checkpoint]) -> None:
    """Register the model ``demo``."""
    registry.add_packaged(
        NAME,
        Path(__file__).with_name("checkpoint"),
        description="a 4 M parameter model of shapes, colours, digits and words; works offline",
    )


def pictures() -> Path:
    """Return the folder of sample images: ``shapes.png``, ``word.jpg`` and ``digit.png``."""
    return Path(__file__).with_name("pictures")
