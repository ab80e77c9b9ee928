"""Numbers that every setting may use; nothing else."""

from typing import Annotated

from msgspec import Meta

Positive = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Seconds = Annotated[float, Meta(gt=0.0, le=86_400.0)]
