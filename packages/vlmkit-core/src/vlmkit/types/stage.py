"""Start and duration of a stage of a request; defines no stages of its own."""

import time
from dataclasses import dataclass
from typing import NamedTuple


class Stage(NamedTuple):
    """One stage; zeros if it did not take place.

    Attributes:
        began_s: start in seconds since the epoch.
        took_s: duration in seconds.
    """

    began_s: float = 0.0
    took_s: float = 0.0

    @classmethod
    def since(cls, began_s: float) -> "Stage":
        """Return a stage that ends now; its duration is 0 if the clock was set back."""
        return cls(began_s, max(0.0, time.time() - began_s))


NO_STAGE = Stage()
"""A stage that did not take place."""


@dataclass(frozen=True, slots=True)
class ImageTimings:
    """The stages of one image, before any of its tokens was computed.

    Attributes:
        fetch: getting its file and checking it.
        decode: from the file to pixels.
        preprocess: from pixels to the inputs of the encoder.
        encode: from inputs to features, with the rest of the encoder's batch; zeros if the features
            were cached.
    """

    fetch: Stage = NO_STAGE
    decode: Stage = NO_STAGE
    preprocess: Stage = NO_STAGE
    encode: Stage = NO_STAGE
