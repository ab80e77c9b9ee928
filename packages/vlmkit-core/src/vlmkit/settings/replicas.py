"""Settings of the built-in runner of replicas."""

from typing import Annotated

import msgspec
from msgspec import Meta


class ReplicasSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many pipelines answer the requests to a model.

    Attributes:
        num_replicas: number of pipelines; each has its own engine, with its own weights and cache.
    """

    num_replicas: Annotated[int, Meta(ge=1, le=64)] = 2
