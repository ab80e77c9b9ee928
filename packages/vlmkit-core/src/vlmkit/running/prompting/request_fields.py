"""Request fields that plugins add: checks their declarations and their values."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from vlmkit.errors import RequestError
from vlmkit.interfaces.request_field import Changes, FieldFacts, RequestField

MAX_NAME_CHARS = 64
_NAME = re.compile(rf"[a-z][a-z0-9_]{{0,{MAX_NAME_CHARS - 1}}}")
_SHAPE = "class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True)"

RESERVED = frozenset(
    """
    access_programs add_generation_prompt add_special add_special_tokens allowed_token_ids audio
    background background_options bad_words bad_words_ids begin_suppress_tokens best_of cache_salt
    chat_template_kwargs container content context_management continue_final_message conversation
    dimensions dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers
    ec_transfer_params echo embd_normalize encoding_format epsilon_cutoff eta_cutoff features
    frequency_penalty function_call functions guided_choice guided_grammar guided_json guided_regex
    ignore_eos image images include include_stop_str_in_output input instructions kv_transfer_params
    light logit_bias logprobs max_completion_tokens max_image_tokens max_model_len max_output_tokens
    max_tokens max_tool_calls mcp_servers messages metadata min_length min_p min_tokens
    mm_processor_kwargs modalities model moderation n no_repeat_ngram_size normalize num_tokens
    output_config parallel_tool_calls personality prediction prefill presence_penalty
    previous_response_id priority prompt prompt_cache_key prompt_cache_options
    prompt_cache_retention prompt_logprobs reasoning reasoning_effort repeat_last_n
    repetition_penalty request_id response_format return_image_transforms return_places
    return_token_ids return_token_strs safety_identifier sampling_params seed sequence_bias
    server_tools service_tier skip_special_tokens speed stop stop_sequences stop_token_ids store
    stream stream_options structured_outputs suffix suppress_tokens system temperature text thinking
    thinking_token_budget thread token_ids tokens tool_choice tools top_k top_logprobs top_p
    truncation typical_p user verbosity web_search_options with_pieces xtc_probability xtc_threshold
    """.split()  # noqa: SIM905 - as a list it is three pages
)
"""Fields that request bodies of vlmkit's own server already have."""


def flaw_of_field(field: object, able: Collection[Changes]) -> str | None:
    """Return why an object cannot be a request field; None if it can.

    Args:
        field: the object that a plugin adds.
        able: what fields may change that are added in this place.
    """
    if not isinstance(field, RequestField):
        return f"a value of type {type(field).__name__!r} is no RequestField"
    name: object = field.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"its name {name!r} is not up to {MAX_NAME_CHARS} small letters, digits and '_'"
    if name in RESERVED:
        return f"{name!r} is a field of requests already"
    if field.changes not in able:
        may = f"which can be {' or '.join(able)}" if able else "but none can be added there"
        return f"{name!r} changes {field.changes!r}, {may}"
    identity: object = field.identity
    if identity is not None and not callable(identity):
        return f"the identity of {name!r} is no function"
    if identity is not None and field.changes != "states":
        return f"{name!r} has an identity and changes {field.changes!r}, so no cache uses it"
    return _flaw_of_shape(field)


def _flaw_of_shape(field: RequestField[Any]) -> str | None:
    shape: object = field.shape
    if not (isinstance(shape, type) and issubclass(shape, msgspec.Struct)):
        return f"the shape of {field.name!r} is no subclass of msgspec.Struct"
    config = shape.__struct_config__
    if not (config.frozen and config.forbid_unknown_fields) or config.array_like:
        return f"the shape of {field.name!r} must be declared as in {_SHAPE}"
    try:
        msgspec.json.Decoder(shape)
        facts_of(field)
    except Exception as error:  # noqa: BLE001 - an error of msgspec, or of the plugin's type
        text = " ".join(str(error).split())
        return f"the shape of {field.name!r} cannot be read from JSON: {text}"
    return None


def facts_of(field: RequestField[Any]) -> FieldFacts:
    """Return the public description of a field."""
    return FieldFacts(msgspec.json.schema(field.shape), field.changes)


def plain_values(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON types; structs are converted.

    Raises:
        RequestError: a value cannot be represented in JSON.
    """
    if not isinstance(said, Mapping):
        raise RequestError(
            f"fields must be a dictionary of values by their names, and was {type(said).__name__}",
            param="fields",
        )
    made = {}
    for name, value in said.items():
        try:
            made[name] = msgspec.to_builtins(value, str_keys=True)
        except (TypeError, ValueError, RecursionError):
            raise RequestError(f"{name}: not what JSON could hold", param=name) from None
    return made


def checked_fields(
    said: Mapping[str, Any], taken: Mapping[str, RequestField[Any]]
) -> dict[str, msgspec.Struct]:
    """Return the values of added fields in a request, as structs.

    Args:
        said: values as JSON types, by field name.
        taken: the fields that the model takes, by name.

    Raises:
        RequestError: the model does not take a field, or its value is invalid.
    """
    made = {}
    for name, value in said.items():
        if (field := taken.get(name)) is None:
            raise refusal(name)
        made[name] = _checked(field, value)
    return made


def refusal(name: str) -> RequestError:
    """Return the error of a field that no component of a model takes."""
    return RequestError(
        f"{name} is taken by no component of this model",
        param=name,
        code="unsupported_parameter",
    )


def _checked(field: RequestField[Any], value: Any) -> msgspec.Struct:
    try:
        made: msgspec.Struct = msgspec.convert(value, field.shape)
    except msgspec.ValidationError as error:
        wrong, _, path = str(error).partition(" - at ")
        place = f"{field.name}{_path_in_field(path)}"
        raise RequestError(f"{place}: {_without_values(wrong, field)}", param=place) from None
    return made


def _path_in_field(path: str) -> str:
    """Return the path of an invalid value within a field, for an error message."""
    found = re.fullmatch(r"(?:`key` in )?`\$([^`]*)`", path)
    return found[1].replace("[...]", "") if found else ""


def _without_values(wrong: str, field: RequestField[Any]) -> str:
    """Return a validation message without any value that the client sent."""
    if wrong.startswith("Object contains unknown field"):
        known = ", ".join(each.encode_name for each in msgspec.structs.fields(field.shape))
        return f"there is no such field in it; {field.name} has {known}"
    if wrong.startswith("Invalid enum value"):
        return "this value is none of those that are taken"
    return wrong
