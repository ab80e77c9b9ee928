"""Which keys of a body may be ignored, and how that is told.

A key that changes the answer elsewhere is refused. Any other is named to the client in a header and
counted for the operator, unless one of them wants it refused or untold; both are bounded, and
neither shows text that is more than a name.
"""

import re
from collections.abc import Iterable
from typing import Any

from vlmkit.errors import RequestError
from vlmkit.server.fields.unused import UnusedKey

HEADER = "x-vlmkit-ignored"
STRICT_HEADER = "x-vlmkit-strict"
MAX_NAMES = 16
OTHER = "other"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_UNKNOWN = "unknown_parameter"
_SAYS_NOTHING = frozenset({b"null", b"[]", b"{}"})

CHANGING: dict[str, tuple[bytes, ...]] = {
    "add_generation_prompt": (b"true",),
    "add_special_tokens": (b"false",),
    "allowed_token_ids": (),
    "bad_words": (),
    "best_of": (b"1",),
    "chat_template": (),
    "chat_template_kwargs": (),
    "continue_final_message": (b"false",),
    "custom_logit_processor": (),
    "do_sample": (b"true",),
    "documents": (),
    "dry_multiplier": (b"0", b"0.0"),
    "ebnf": (),
    "echo": (b"false",),
    "embed_dtype": (b'"float32"',),
    "enable_thinking": (),
    "endianness": (b'"native"', b'"little"'),
    "format": (),
    "grammar": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (b"true",),
    "input_type": (),
    "json_schema": (),
    "length_penalty": (b"1", b"1.0"),
    "logits_processors": (),
    "lora_path": (),
    "max_length": (),
    "max_new_tokens": (),
    "messages.content.image_url.max_dynamic_patch": (),
    "messages.content.image_url.min_dynamic_patch": (),
    "messages.partial": (b"false",),
    "messages.prefix": (b"false",),
    "min_new_tokens": (b"0",),
    "mirostat": (b"0",),
    "mm_processor_kwargs": (),
    "n_predict": (b"-1",),
    "normalize": (),
    "num_predict": (b"-1",),
    "options": (),
    "prompt_logprobs": (b"0",),
    "prompt_name": (),
    "reasoning": (),
    "regex": (),
    "repeat_penalty": (b"1", b"1.0"),
    "return_hidden_states": (b"false",),
    "sampling_seed": (),
    "separate_reasoning": (b"true",),
    "server_tools": (),
    "session_params": (),
    "structured_outputs.structural_tag": (),
    "structured_outputs.whitespace_pattern": (),
    "thinking": (),
    "truncate_prompt_tokens": (),
    "typical_p": (b"1", b"1.0"),
    "use_beam_search": (b"false",),
}
"""Fields by which requests change the answer elsewhere, and values that change nothing.

A route that has such a field of its own honours it.
"""

NEUTRAL = {"stream_reasoning": b"true"}
"""Values of other keys that say what is the case anyway."""

HINTS: dict[str, tuple[Any, ...]] = {
    "prediction": (None, [], {}),
    "prompt_cache_options": (None, [], {}),
    "prompt_cache_retention": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
}
"""Wishes of OpenAI's APIs that change no answer, and values that say what is the case anyway.

A route whose answer does depend on one of them honours or refuses it.
"""

COUNTED = frozenset(HINTS) | frozenset(
    {
        "cache_control",
        "input.content.annotations",
        "input.content.detail",
        "input.content.logprobs",
        "input.encrypted_content",
        "input.phase",
        "messages.annotations",
        "messages.cache_control",
        "messages.content.cache_control",
        "messages.content.content.cache_control",
        "messages.content.image_url.detail",
        "messages.content.is_error",
        "messages.name",
        "messages.provider_specific_fields",
        "messages.reasoning",
        "messages.thinking_blocks",
        "messages.tool_calls.index",
        "output_config.effort",
        "reasoning_effort",
        "reasoning.summary",
        "stream_reasoning",
        "system.cache_control",
        "thinking.budget_tokens",
        "thinking.display",
        "tools.cache_control",
    }
)
"""What clients are known to send. Any other name is a client's own text and is counted as other."""


def ignored_names(keys: Iterable[UnusedKey]) -> frozenset[str]:
    """Return the names of keys that say something and may be ignored, or ``other``.

    Raises:
        RequestError: a key would change the answer.
    """
    names: set[str] = set()
    for place, first_bytes in keys:
        start = first_bytes.translate(None, b" \t\r\n")
        if place in names or start in _SAYS_NOTHING or start == NEUTRAL.get(place):
            continue
        if place not in CHANGING:
            names.add(place if len(names) < MAX_NAMES and _NAME.fullmatch(place) else OTHER)
        elif start not in CHANGING[place]:
            raise RequestError(
                f"{place} is not supported by this server",
                param=place,
                code="unsupported_parameter",
            )
    return frozenset(names)


def unknown(names: Iterable[str]) -> RequestError:
    """Return the refusal of keys that might be ignored, where nothing may be."""
    first = min(names)
    if first == OTHER:
        return RequestError("the body has a key that this server does not know", code=_UNKNOWN)
    return RequestError(f"{first} is not known to this server", param=first, code=_UNKNOWN)


def header_value(names: Iterable[str]) -> str:
    """Return names as the value of a header."""
    return ", ".join(sorted(names))


def counter_names(names: Iterable[str]) -> frozenset[str]:
    """Return what to count names as, of which there are few, whatever clients send."""
    return frozenset(name if name in COUNTED else OTHER for name in names)
