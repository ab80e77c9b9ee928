"""Contracts that every component must keep: inherit one in your plugin's tests and fill it in.

Each protocol of :mod:`vlmkit.protocols` has a class here whose test methods pytest collects from
your subclass. Needs pytest and hypothesis (``pip install vlmkit[testing]``); the core never imports
this package.
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"vlmkit.testing.{name}"
        for name in (
            "engine_contract",
            "engine_host",
            "sampler_contract",
            "scheduler_contract",
            "scheduler_simulation",
            "tokenizer_contract",
            "vision_encoder_contract",
        )
    )
)

from vlmkit.testing.engine_contract import EngineContract  # noqa: E402 - after the rewrite hook
from vlmkit.testing.engine_host import EngineHost  # noqa: E402
from vlmkit.testing.pictures import awkward_pictures, picture  # noqa: E402
from vlmkit.testing.sampler_contract import SamplerContract  # noqa: E402
from vlmkit.testing.scheduler_contract import SchedulerContract  # noqa: E402
from vlmkit.testing.sequences import new_sequence  # noqa: E402
from vlmkit.testing.tokenizer_contract import TokenizerContract  # noqa: E402
from vlmkit.testing.vision_encoder_contract import VisionEncoderContract  # noqa: E402

__all__ = [
    "EngineContract",
    "EngineHost",
    "SamplerContract",
    "SchedulerContract",
    "TokenizerContract",
    "VisionEncoderContract",
    "awkward_pictures",
    "new_sequence",
    "picture",
]
