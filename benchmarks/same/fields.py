"""Requests with each field that the server lists, by API."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from same.request import Json, Request, post

USER = {"role": "user", "content": "Hello"}
SAID = {"role": "assistant", "content": "Well"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
DRAWN = {"temperature": 0.7, "seed": 1}
VALUES: dict[str, Json] = {
    "add_generation_prompt": False,
    "add_special": True,
    "add_special_tokens": False,
    "allowed_token_ids": [72, 105],
    "background": False,
    "bad_words": ["ell"],
    "best_of": 1,
    "cache_salt": "salt",
    "chat_template_kwargs": {"enable_thinking": True},
    "content": "Hello",
    "continue_final_message": True,
    "dimensions": 8,
    "dry_allowed_length": 1,
    "dry_base": 2.0,
    "dry_multiplier": 0.8,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["\n", "l"],
    "echo": True,
    "embd_normalize": 2,
    "encoding_format": "base64",
    "frequency_penalty": 0.5,
    "guided_choice": ["yes", "no"],
    "guided_grammar": 'start: "a" | "b"\n',
    "guided_json": SCHEMA,
    "guided_regex": "[ab]{3}",
    "ignore_eos": True,
    "image": {"context_compression": "disabled"},
    "include": ["message.output_text.logprobs"],
    "include_stop_str_in_output": True,
    "instructions": "Be short.",
    "light": True,
    "logit_bias": {"72": 5, "105": -5},
    "logprobs": True,
    "max_completion_tokens": 3,
    "max_image_tokens": 2,
    "max_output_tokens": 3,
    "max_tokens": 3,
    "max_tool_calls": 1,
    "metadata": {"a": "b"},
    "min_p": 0.1,
    "min_tokens": 7,
    "mm_processor_kwargs": {"max_dynamic_patch": 2},
    "modalities": ["text"],
    "n": 2,
    "normalize": True,
    "num_tokens": 3,
    "max_model_len": 100,
    "output_config": {"effort": "low"},
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "Hello"},
    "presence_penalty": 0.5,
    "priority": 3,
    "prompt_cache_key": "key",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "prompt_logprobs": 2,
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "repeat_last_n": 8,
    "repetition_penalty": 1.2,
    "request_id": "mine",
    "response_format": {"type": "json_object"},
    "return_image_transforms": True,
    "return_places": False,
    "return_token_ids": True,
    "return_token_strs": True,
    "safety_identifier": "someone",
    "seed": 7,
    "server_tools": [],
    "service_tier": "auto",
    "skip_special_tokens": False,
    "speed": "standard",
    "stop": ["l"],
    "stop_sequences": ["l"],
    "stop_token_ids": [108],
    "store": False,
    "stream": False,
    "stream_options": {"include_usage": True},
    "structured_outputs": {"regex": "[ab]{3}"},
    "system": "Be short.",
    "temperature": 0.7,
    "text": {"format": {"type": "json_object"}},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "thinking_token_budget": 5,
    "tool_choice": "auto",
    "tools": [TOOL],
    "top_k": 5,
    "top_logprobs": 2,
    "top_p": 0.9,
    "truncation": "auto",
    "typical_p": 0.9,
    "user": "someone",
    "verbosity": "low",
    "with_pieces": True,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.05,
}
"""A valid value of each field. Other fields get a string."""

BESIDE: dict[str, dict[str, Json]] = {
    "top_logprobs": {"logprobs": True},
    "continue_final_message": {"messages": [USER, SAID], "add_generation_prompt": False},
    "include_stop_str_in_output": {"stop": ["l"]},
    "parallel_tool_calls": {"tools": [TOOL]},
    "tool_choice": {"tools": [TOOL]},
    "stream_options": {"stream": True},
    "xtc_threshold": DRAWN | {"xtc_probability": 0.5},
    "seed": {"temperature": 0.7},
    "temperature": {"seed": 1},
    **dict.fromkeys(("top_p", "top_k", "min_p", "typical_p", "xtc_probability", "n"), DRAWN),
}
"""The other fields that a field needs to have an effect."""

SAMPLING = (
    "allowed_token_ids", "bad_words", "dry_allowed_length", "dry_base", "dry_multiplier",
    "dry_penalty_last_n", "dry_sequence_breakers", "frequency_penalty", "ignore_eos",
    "include_stop_str_in_output", "logit_bias", "max_tokens", "min_p", "min_tokens", "n",
    "presence_penalty", "prompt_logprobs", "repeat_last_n", "repetition_penalty", "seed",
    "skip_special_tokens", "stop", "stop_token_ids", "structured_outputs", "temperature", "top_k",
    "top_p", "typical_p", "xtc_probability", "xtc_threshold", "logprobs",
)  # fmt: skip
"""Fields of ``sampling_params`` of ``/inference/v1/generate``."""

LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
LENGTHS += ("n_predict", "num_predict")
"""Fields that say how long an answer may be; a request has one of them."""

ODD: tuple[Json, ...] = (-7.5, ["probe"], {"probe": 1})
"""Values that hardly any field accepts."""


@dataclass(frozen=True)
class Api:
    """One API.

    Attributes:
        path: the path of its route.
        base: the smallest valid body.
        can_stream: whether it can also stream.
        values: the values of its fields that differ from ``VALUES``.
    """

    path: str
    base: dict[str, Json]
    can_stream: bool = False
    values: dict[str, Json] = field(default_factory=dict)


_ANTHROPIC_TOOL = {"name": "look", "input_schema": SCHEMA}
_RESPONSES_TOOL = {"type": "function", **FUNCTION}
_OF_MESSAGES = {"metadata": {"user_id": "someone"}, "tool_choice": {"type": "auto"}}
_OF_MESSAGES |= {"tools": [_ANTHROPIC_TOOL]}
_CHAT = {"model": "mock", "messages": [USER]}
_SHORT = _CHAT | {"max_tokens": 12}
_TEXT = {"model": "mock", "prompt": "Hello"}
_RESPONSE = {"model": "mock", "input": "Hello", "store": False, "max_output_tokens": 12}
_TOKENS = {"model": "mock", "token_ids": [72, 105], "sampling_params": {"max_tokens": 12}}
_OF_TEXTS = {"logprobs": 2}
_OF_RESPONSES = {"tools": [_RESPONSES_TOOL]}
APIS = (
    Api("/v1/chat/completions", _SHORT, can_stream=True),
    Api("/v1/completions", _TEXT, can_stream=True, values=_OF_TEXTS),
    Api("/v1/responses", _RESPONSE, can_stream=True, values=_OF_RESPONSES),
    Api("/v1/messages", _SHORT, can_stream=True, values=_OF_MESSAGES),
    Api("/inference/v1/generate", _TOKENS, can_stream=True),
    Api("/v1/embeddings", {"model": "mock", "input": "Hello"}),
    Api("/tokenize", _TEXT),
    Api("/detokenize", {"model": "mock", "tokens": [72, 105]}),
    Api("/v1/chat/completions/render", _CHAT),
    Api("/v1/chat/completions/input_tokens", _CHAT),
    Api("/v1/completions/render", _TEXT, values=_OF_TEXTS),
    Api("/v1/responses/render", _RESPONSE, values=_OF_RESPONSES),
    Api("/v1/responses/input_tokens", {"model": "mock", "input": "Hello"}, values=_OF_RESPONSES),
    Api("/v1/messages/render", _SHORT, values=_OF_MESSAGES),
    Api("/v1/messages/count_tokens", _CHAT, values=_OF_MESSAGES),
    Api("/invocations", _SHORT),
)


@dataclass(frozen=True)
class Known:
    """The fields that a server lists for one API."""

    taken: list[str]
    aliases: dict[str, str]
    others: list[str]


def known(capabilities: Json, path: str) -> Known:
    """Return the capabilities of the first model for a route."""
    told = capabilities["models"][0]["endpoints"][path]
    others = [*told["refused"], *told["without_effect"]]
    return Known(told["parameters"], dict(told["aliases"]), others)


def requests(capabilities: Json) -> Iterator[Request]:
    """Yield each field of each API with a usual value and unusual ones."""
    for api in APIS:
        fields = known(capabilities, api.path)
        for name in fields.taken:
            yield from _taken(api, name, name)
        for alias, name in fields.aliases.items():
            yield from _taken(api, alias, name)
        for name in fields.others:
            if api.can_stream or name not in api.base:
                yield _with(api, name, "probe", "refused or without effect")
        if api.path == "/v1/chat/completions":
            for name in fields.others:
                yield _with(api, name, False, "refused unless false")
    yield from _sampling()


def _taken(api: Api, name: str, meaning: str) -> Iterator[Request]:
    value = {**VALUES, **api.base, **api.values}.get(meaning, "probe")
    usual = _with(api, name, value, "usual", BESIDE.get(meaning, {}))
    yield usual
    if api.can_stream and name != "stream":
        yield usual.streamed()
    for odd in ODD:
        yield _with(api, name, odd, f"{odd}")


def _with(api: Api, name: str, value: Json, what: str, beside: Json = None) -> Request:
    """Return a request with a value of a field, whose name may be a path into objects."""
    outer, *inner = name.split(".")
    for step in reversed(inner):
        value = {step: value}
    base = api.base
    if outer in LENGTHS:
        base = {key: kept for key, kept in base.items() if key not in LENGTHS}
    taken = {key: kept for key, kept in (beside or {}).items() if key != outer}
    return post(f"{name}, {what}", api.path, base | taken | {outer: value})


def _sampling() -> Iterator[Request]:
    path, base = "/inference/v1/generate", {"model": "mock", "token_ids": [72, 101, 108, 108, 111]}
    for name in SAMPLING:
        usual = 2 if name == "logprobs" else VALUES[name]
        beside = {"max_tokens": 12} | BESIDE.get(name, {})
        for value in (usual, *ODD):
            params = {"sampling_params": beside | {name: value}}
            request = post(f"sampling_params.{name}, {value}", path, base | params)
            yield request
            if value is usual:
                yield request.streamed()
