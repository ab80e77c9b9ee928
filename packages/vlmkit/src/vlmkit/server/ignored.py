"""Which keys of a body may be ignored, and how that is told.

A key that changes the answer elsewhere is refused. Any other is named to the client in a header and
counted for the operator; both are bounded, and neither shows text that is more than a name.
"""

import re
from collections.abc import Iterable

from vlmkit.errors import RequestError
from vlmkit.server.unused import UnusedKey

HEADER = "x-vlmkit-ignored"
MAX_NAMES = 16
OTHER = "other"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
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
    "do_sample": (b"true",),
    "documents": (),
    "dry_multiplier": (b"0", b"0.0"),
    "echo": (b"false",),
    "ebnf": (),
    "enable_thinking": (),
    "format": (),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (b"false",),
    "json_schema": (),
    "length_penalty": (b"1", b"1.0"),
    "logits_processors": (),
    "lora_path": (),
    "max_length": (),
    "max_new_tokens": (),
    "messages.partial": (b"false",),
    "messages.prefix": (b"false",),
    "min_new_tokens": (b"0",),
    "mirostat": (b"0",),
    "mm_processor_kwargs": (),
    "n_predict": (b"-1",),
    "num_predict": (b"-1",),
    "options": (),
    "prompt_logprobs": (b"0",),
    "reasoning": (),
    "regex": (),
    "repeat_penalty": (b"1", b"1.0"),
    "skip_special_tokens": (b"true",),
    "stop_token_ids": (),
    "structured_outputs": (),
    "thinking": (),
    "truncate_prompt_tokens": (),
    "typical_p": (b"1", b"1.0"),
    "use_beam_search": (b"false",),
}
"""Fields of a request by which other servers change the answer, and values that change nothing."""

NEUTRAL = {"messages.content.image_url.detail": b'"auto"'}
"""Values of other keys that say what is the case anyway."""

COUNTED = frozenset(
    {
        "messages.annotations",
        "messages.cache_control",
        "messages.content.cache_control",
        "messages.content.image_url.detail",
        "messages.name",
        "messages.provider_specific_fields",
        "messages.reasoning_content",
        "messages.thinking_blocks",
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


def header_value(names: Iterable[str]) -> str:
    """Return names as the value of a header."""
    return ", ".join(sorted(names))


def counter_names(names: Iterable[str]) -> frozenset[str]:
    """Return what to count names as, of which there are few, whatever clients send."""
    return frozenset(name if name in COUNTED else OTHER for name in names)
