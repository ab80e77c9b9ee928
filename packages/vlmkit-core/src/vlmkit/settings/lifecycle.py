"""Types of settings that say when a model is loaded and unloaded; nothing else."""

from typing import Annotated, Literal

from msgspec import Meta

When = Literal["start", "use", "request"]
"""When a model is loaded."""
OnFailure = Literal["exit", "restart"]
"""What is done about a model whose engine failed for good."""
IdleSeconds = Annotated[float, Meta(gt=0.0, le=31_536_000.0)]
"""Time without a request after which a model is unloaded."""
