"""Types of settings for the loading and unloading of models."""

from typing import Annotated, Literal

from msgspec import Meta

When = Literal["start", "use", "request"]
"""When a model is loaded."""
OnFailure = Literal["exit", "restart"]
"""What to do about a model whose engine failed for good."""
IdleSeconds = Annotated[float, Meta(gt=0.0, le=31_536_000.0)]
"""Time without requests after which a model is unloaded, in seconds."""
