"""Converts the fields of a body into sampling parameters."""

from collections.abc import Iterable
from typing import Any

from vlmkit.errors import RequestError
from vlmkit_server.wire.sampling_fields import SamplingFields

_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "thinking_token_budget",
    "seed",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "ignore_eos",
    "min_tokens",
    "max_tokens",
)

TOP_K_OFF = -1  # of top_k, as other servers write it


def sampling_values(body: SamplingFields) -> dict[str, Any]:
    """Return the sampling parameters of a body, by the names of :class:`vlmkit.SamplingParams`.

    Raises:
        RequestError: it has stream options without a stream.
    """
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true", param="stream_options")
    values = parameter_values(body, body.stop)
    return values if body.n is None else values | {"n": body.n}


def parameter_values(fields: Any, stop: str | Iterable[str] | None) -> dict[str, Any]:
    """Return the sampling parameters that are set under their own names.

    Args:
        fields: a body, or the object in it that holds them.
        stop: the texts that end the answer, which each API names its own way.
    """
    values = {name: value for name in _SAME_NAME if (value := getattr(fields, name)) is not None}
    if values.get("top_k") == TOP_K_OFF:
        values["top_k"] = 0
    if stop is not None:
        values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    return values
