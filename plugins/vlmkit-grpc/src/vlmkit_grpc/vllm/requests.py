"""Reads requests of vLLM's service as requests to a runner, and refuses what would change them.

A field is either honoured or refused by its name; none is ignored that could change an answer. It
does not check what the runner checks itself, such as ids that are not in the vocabulary.
"""

import math
import secrets
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from vlmkit.errors import PromptTooLong, RequestError
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.types.constraint import (
    Constraint,
    JsonObject,
    JsonSchema,
    Lark,
    OneOf,
    Regex,
    decoded_schema,
)
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_grpc.protocol.vllm_pb2 import DecodingParameters, GenerateRequest

MAX_REQUEST_ID_CHARS = 256
MAX_SALT_CHARS = 512
MAX_PRIORITY = 1000

NOT_SUPPORTED: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "GenerateRequest": {14: "media", 15: "lora_name"},
        "DecodingParameters": {11: "structural_tag"},
        "ResponseOptions": {2: "prompt_logprobs", 3: "prompt_candidates"},
        "KVCacheParameters": {3: "kv_transfer_params", 4: "ec_transfer_params"},
        "CandidateTokens": {2: "token_ids", 3: "all"},
    }
)
"""Fields of vLLM's messages that no worker honours, by their numbers."""

FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "messages": "prompt",
        "token_ids": "token_ids.ids",
        "n": "sampling.num_sequences",
        "top_k": "sampling.top_k",
        "top_p": "sampling.top_p",
        "min_p": "sampling.min_p",
        "seed": "sampling.seed",
        "presence_penalty": "decoding.presence_penalty",
        "frequency_penalty": "decoding.frequency_penalty",
        "repetition_penalty": "decoding.repetition_penalty",
        "logit_bias": "decoding.logit_bias",
        "allowed_token_ids": "decoding.allowed_token_ids",
        "constraint": "decoding.structured_output",
        "max_tokens": "stopping.max_new_tokens",
        "min_tokens": "stopping.min_new_tokens",
        "stop_token_ids": "stopping.stop_token_ids",
        "stop": "stopping.stop_strings",
        "include_stop_str_in_output": "stopping.include_stop_strings",
        "ignore_eos": "stopping.ignore_eos",
        "skip_special_tokens": "response.skip_special_tokens",
        "logprobs": "response.output_logprobs",
        "top_logprobs": "response.output_candidates.top_n",
    }
)
"""The field of a message that sets a parameter of a runner's request."""


class FieldNotSupportedError(RequestError):
    """A request has content that no worker honours, such as images."""


class ModelUnknownError(RequestError):
    """A request names another model."""


def runner_request(message: GenerateRequest, facts: RunnerFacts) -> Request:
    """Return the request to a runner.

    Raises:
        FieldNotSupportedError: it has media.
        ModelUnknownError: it names another model.
        RequestError: a field is refused, or out of range.
    """
    _check_known("", message)
    if message.model not in ("", facts.name):
        raise ModelUnknownError("the worker runs another model", param="model")
    if len(message.request_id) > MAX_REQUEST_ID_CHARS:
        raise RequestError(f"is over {MAX_REQUEST_ID_CHARS} characters", param="request_id")
    if not 0 <= message.priority <= MAX_PRIORITY:
        raise RequestError(f"is not between 0 and {MAX_PRIORITY}", param="priority")
    return Request(
        **_prompt(message, facts),
        params=_params(message, facts),
        clamp_max_tokens=True,
        constraint=_constraint(message.decoding),
        cache_salt=_salt(message),
        priority=message.priority,
    )


def _check_known(path: str, message: Message) -> None:
    """Refuse a message with fields that are not defined here, in itself or within."""
    name = message.DESCRIPTOR.name
    unknown = sorted(field.field_number for field in UnknownFieldSet(message))
    if unknown:
        field = NOT_SUPPORTED.get(name, {}).get(unknown[0], f"the field {unknown[0]} of {name}")
        error = FieldNotSupportedError if field == "media" else RequestError
        raise error("is not supported by this worker", param=path + field)
    for field, value in message.ListFields():
        if field.message_type is not None and isinstance(value, Message):
            _check_known(f"{path}{field.name}.", value)


def _prompt(message: GenerateRequest, facts: RunnerFacts) -> dict[str, Any]:
    """Return the prompt as a field of a runner's request."""
    num_kept, kind = message.truncate_prompt_tokens, message.WhichOneof("prompt")
    if kind is None:
        raise RequestError("has neither text nor token_ids", param="prompt")
    if kind == "text":
        if num_kept:
            problem = "is not supported with a text"
            raise RequestError(problem, param="truncate_prompt_tokens")
        return {"text": message.text}
    ids = message.token_ids.ids
    given = tuple(ids[-num_kept:] if num_kept else ids)
    most = facts.limits.max_sequence_tokens
    if len(given) > most:
        raise PromptTooLong(most, f"the prompt has {len(given)} tokens", param="token_ids")
    return {"token_ids": given}


def _params(message: GenerateRequest, facts: RunnerFacts) -> SamplingParams:
    """Return how tokens are chosen: what the request sets, on top of the model's own defaults."""
    return facts.defaults.replaced(dict(_values(message)))


def _values(message: GenerateRequest) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that a request sets."""
    sampling, decoding, stopping = message.sampling, message.decoding, message.stopping
    yield "temperature", _decimal(message.temperature)
    for name in ("top_p", "min_p"):
        if value := getattr(sampling, name):
            yield name, _decimal(value)
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        if value := getattr(decoding, name):
            yield name, _decimal(value)
    given = {
        "top_k": sampling.top_k,
        "n": sampling.num_sequences,
        "max_tokens": stopping.max_new_tokens,
        "min_tokens": stopping.min_new_tokens,
        "logit_bias": {each: _decimal(bias) for each, bias in decoding.logit_bias.items()},
        "allowed_token_ids": tuple(decoding.allowed_token_ids),
        "stop_token_ids": tuple(stopping.stop_token_ids),
        "stop": tuple(stopping.stop_strings),
        "include_stop_str_in_output": stopping.include_stop_strings,
        "ignore_eos": stopping.ignore_eos,
    }
    yield from ((name, value) for name, value in given.items() if value)
    if sampling.HasField("seed"):
        yield "seed", sampling.seed
    yield from _response_values(message)


def _response_values(message: GenerateRequest) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that depend on what the answer has to contain."""
    response = message.response
    if response.HasField("skip_special_tokens"):
        yield "skip_special_tokens", response.skip_special_tokens
    if response.output_logprobs:
        yield "logprobs", True
        yield "top_logprobs", max(1, response.output_candidates.top_n)  # one states a rank
    elif response.HasField("output_candidates"):
        problem = "needs output_logprobs to be true"
        raise RequestError(problem, param="response.output_candidates")


def _decimal(value: float) -> float:
    """Return the number with the fewest digits that a field of 32 bits would hold as the same.

    It is the number that a client wrote, so that 0.7 is 0.7 over HTTP and over gRPC.
    """
    if not math.isfinite(value):
        return value
    for num_digits in range(6, 9):
        decimal = float(f"{value:.{num_digits}g}")
        if struct.unpack("f", struct.pack("f", decimal))[0] == value:
            return decimal
    return value


def _constraint(decoding: DecodingParameters) -> Constraint | None:
    """Return what an answer must match.

    Raises:
        ConstraintError: it is invalid.
    """
    kind = decoding.WhichOneof("structured_output")
    if kind == "json":
        return JsonSchema.of(decoded_schema(decoding.json.encode()))
    if kind == "regex":
        return Regex(decoding.regex)
    if kind == "choice":
        return OneOf(tuple(decoding.choice.choices))
    if kind == "grammar":
        return Lark(decoding.grammar)
    return JsonObject() if decoding.json_object else None


def _salt(message: GenerateRequest) -> str:
    """Return what separates a request from others in the cache."""
    if len(message.kv.cache_salt) > MAX_SALT_CHARS:
        raise RequestError(f"is over {MAX_SALT_CHARS} characters", param="kv.cache_salt")
    return secrets.token_hex(16) if message.kv.bypass_prefix_cache else message.kv.cache_salt
