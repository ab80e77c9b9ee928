"""When a stage of a request began and how long it took; what stages there are is said elsewhere."""

import time
from dataclasses import dataclass
from typing import NamedTuple


class Stage(NamedTuple):
    """One stage; zeros where it did not take place.

    Attributes:
        began_s: in seconds since the epoch.
        took_s: in seconds.
    """

    began_s: float = 0.0
    took_s: float = 0.0

    @classmethod
    def since(cls, began_s: float) -> "Stage":
        """Return a stage that ends now; of no length where the clock was set back meanwhile."""
        return cls(began_s, max(0.0, time.time() - began_s))


NO_STAGE = Stage()
"""One that did not take place."""


@dataclass(frozen=True, slots=True)
class ImageTimings:
    """Where the time of one image went, before any token of it was computed.

    Attributes:
        fetch: getting its file and looking at that.
        decode: from the file to pixels.
        preprocess: from pixels to what the encoder takes.
        encode: to features, with whatever else was in the encoder's batch; zeros where they
            were there already.
    """

    fetch: Stage = NO_STAGE
    decode: Stage = NO_STAGE
    preprocess: Stage = NO_STAGE
    encode: Stage = NO_STAGE
