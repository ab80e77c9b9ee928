"""How a model's authors want tokens chosen, as its ``generation_config.json`` says."""

import logging
from typing import Any

from vlmkit.ask.sampling import SamplingParams, sampling_params
from vlmkit.errors import RequestError
from vlmkit.kit.checkpoint import Checkpoint

log = logging.getLogger(__name__)

SAMPLED_FIELDS = ("temperature", "top_p", "top_k", "min_p")


def default_params(checkpoint: Checkpoint) -> SamplingParams:
    """Return how the model's authors want tokens chosen, from ``generation_config.json``.

    Without ``do_sample`` it is the likeliest token each time. A value that is out of our bounds
    is left out, with a warning.
    """
    stated = checkpoint.read_json("generation_config.json")
    names = ["repetition_penalty"]
    values: dict[str, Any] = {}
    if stated.get("do_sample"):
        names += SAMPLED_FIELDS
        values["temperature"] = 1.0  # what do_sample means where no temperature is stated
    for name in names:
        if stated.get(name) is None:
            continue
        try:
            sampling_params({name: stated[name]})
        except RequestError as error:
            log.warning("model %r: generation_config.json: %s", checkpoint.name, error)
        else:
            values[name] = stated[name]
    return sampling_params(values)
