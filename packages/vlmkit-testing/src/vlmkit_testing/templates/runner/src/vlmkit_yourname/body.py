"""What a request is to the other server: the bodies that are sent, and what cannot be sent."""

import hashlib
from collections.abc import Mapping, Sequence as Seq
from typing import Any

import msgspec

from vlmkit.errors import ConstraintError, PromptTooLong, RequestError
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.types.message import Message, TextPart
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams

SENT = frozenset(
    {
        *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
        *("stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens"),
        "ignore_eos",
    }
)
"""The sampling parameters that the other server follows; all others are refused."""


def prompt_body(request: Request) -> dict[str, Any]:
    """Return the body of ``/tokenize`` for a prompt.

    Raises:
        RequestError: there is no prompt, or it has more than text.
    """
    if request.text is not None:
        return {"prompt": request.text, "add_special_tokens": request.adds_special}
    if not request.messages:
        raise RequestError("a request needs messages, a text or tokens", param="messages")
    if request.tools:
        raise RequestError("this model calls no tools", param="tools")
    options: dict[str, Any] = {
        name: getattr(request.options, name) for name in request.options.asked
    }
    options.pop("light", None)  # there is nothing that could be left out
    return {"messages": [_message(message) for message in request.messages], **options}


def _message(message: Message) -> dict[str, str]:
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    if message.role == "tool" or len(texts) < len(message.parts):
        raise RequestError("this model takes only text", param="messages")
    return {"role": message.role, "content": "".join(texts)}


def checked_params(
    request: Request, params: SamplingParams, token_ids: Seq[int], facts: RunnerFacts
) -> SamplingParams:
    """Return the parameters of a request, with the number of tokens that it may generate.

    Raises:
        RequestError: the other server cannot do what the request asks for.
        PromptTooLong: prompt and answer do not fit the context.
    """
    if request.constraint is not None:
        raise ConstraintError("this model constrains no answers")
    if request.task != "generate" or request.images or request.places or request.fields:
        raise RequestError("this model only answers texts", param="task")
    default = SamplingParams()
    for name in params.__struct_fields__:
        if name not in SENT and getattr(params, name) != getattr(default, name):
            raise RequestError(f"this model does not follow {name}", param=name)
    if not token_ids or not all(0 <= each < facts.limits.vocab_size for each in token_ids):
        raise RequestError("a prompt is empty, or has an unknown token", param="token_ids")
    most = facts.limits.max_sequence_tokens
    num_left = most - len(token_ids)
    if facts.bounds.max_output_tokens is not None:
        num_left = min(num_left, facts.bounds.max_output_tokens)
    asked = params.max_tokens
    if num_left < 1 or (asked is not None and asked > num_left and not request.clamp_max_tokens):
        raise PromptTooLong(most, f"prompt and answer have {len(token_ids) + (asked or 1)} tokens")
    return params.replaced({"max_tokens": min(asked or num_left, num_left)})


def completion_body(
    request: Request, params: SamplingParams, token_ids: Seq[int]
) -> dict[str, Any]:
    """Return the body of ``/v1/completions``."""
    values: Mapping[str, Any] = msgspec.to_builtins(params)
    body = {name: values[name] for name in sorted(SENT) if values[name] not in (None, [], {})}
    if request.tenant or request.cache_salt:  # the caches of tenants stay apart there, too
        mixed = f"{request.tenant}\0{request.cache_salt}".encode()
        body["cache_salt"] = hashlib.sha256(mixed).hexdigest()
    return {**body, "prompt": list(token_ids), "return_token_ids": True}
