"""Finds the chat templates of a checkpoint, which may be in several files."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.settings import HfTokenizerSettings

log = logging.getLogger(__name__)

GIVE_ONE = 'give it one: tokenizer.chat_template = "PATH"'
DEFAULT = "default"
WITH_TOOLS = "tool_use"
"""The name of a template for conversations with tools."""

_NAMED = "additional_chat_templates/{}.jinja"
_FILES = (
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "tokenizer_config.json",
)
"""Files with the default template, in JSON also named ones; the first file with one counts."""

# PaliGemma publishes no template: images come first, then the question.
_PALIGEMMA = (
    "{% for message in messages %}{% if message['role'] != 'user' or not loop.last %}"
    "{{ raise_exception('this model answers a single message of a user') }}{% endif %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] }}{% endfor %}{% endfor %}"
)
# GOT-OCR publishes none either: its processor writes the prompt of a single question.
_GOT_OCR2 = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou should follow the "
    "instructions carefully and explain your answers in detail.<|im_end|>{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% set pages = message['content'] | selectattr('type', 'equalto', 'image') | list %}"
    "{% if pages %}<img>{% for page in pages %}<imgpad>{% endfor %}</img>\n{% endif %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] }}{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_BY_FAMILY = {"paligemma": _PALIGEMMA, "got_ocr2": _GOT_OCR2}


def template_sources(
    checkpoint: Checkpoint, tokenizer: Any, settings: HfTokenizerSettings
) -> Mapping[str, str]:
    """Return templates by name: the operator's, the processor's or the tokenizer's, in this order.

    The result is empty or has a default. A model without a template can still complete texts, so
    that is logged and not refused.

    Raises:
        CheckpointError: there is no default among several, or a template cannot be read.
        ConfigError: the operator's template cannot be read.
    """
    if (operator_template := read_operator_template(settings)) is not None:
        return operator_template
    found = templates_in_files(checkpoint) or _of_settings(checkpoint, tokenizer)
    refuse_without_default(checkpoint, found)
    return found


def refuse_without_default(checkpoint: Checkpoint, found: Mapping[str, str]) -> None:
    """Refuse templates without a default; log a warning if there are no templates.

    Raises:
        CheckpointError: there are templates, and no default.
    """
    if not found:
        log.warning(
            "model %r has no chat template: it completes texts and takes no messages; %s",
            *(checkpoint.name, GIVE_ONE),
        )
    elif DEFAULT not in found:
        raise CheckpointError(
            f"none of the chat templates of model {checkpoint.name!r} is its default: "
            f"{', '.join(map(repr, sorted(found)))}",
            hint="write the one that is meant to a file, and name it: "
            'tokenizer.chat_template = "PATH"',
        )


def origin_of(name: str, checkpoint: Checkpoint, settings: HfTokenizerSettings) -> str:
    """Return a chat template's name and file, for error messages."""
    called = "" if name == DEFAULT else f"{name!r} "
    if settings.chat_template is not None:
        return f"{called}in {settings.chat_template!r}"
    if (checkpoint.path / _NAMED.format(name)).is_file():
        return f"{called}in {_NAMED.format(name)!r}"
    files = [file for file in _FILES if checkpoint.has(file)]
    with_template = [file for file in files if _has_template(checkpoint, file)]
    return f"{called}in {with_template[0]!r}" if with_template else called.rstrip()


def _has_template(checkpoint: Checkpoint, file: str) -> bool:
    return file.endswith(".jinja") or bool(checkpoint.read_json(file).get("chat_template"))


def templates_in_files(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the templates that have files of their own, by name.

    Raises:
        CheckpointError: a file cannot be read.
    """
    files = {path.stem: path for path in checkpoint.path.glob(_NAMED.format("*"))}
    own = checkpoint.path / _FILES[0]
    if own.is_file():
        files[DEFAULT] = own
    found = {}
    for name, path in files.items():
        try:
            found[name] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(
                f"{path.name!r} of model {checkpoint.name!r} cannot be read as text",
                hint=f"fetch it again, or {GIVE_ONE}",
            ) from error
    return found


def _of_settings(checkpoint: Checkpoint, tokenizer: Any) -> dict[str, str]:
    """Return the templates inside JSON settings files, or the built-in one of the family."""
    found = checkpoint.read_json("chat_template.json").get("chat_template")
    found = found or checkpoint.read_json("processor_config.json").get("chat_template")
    found = found or tokenizer.chat_template
    found = found or _BY_FAMILY.get(checkpoint.model_type)
    if found is None:
        return {}
    named = dict(found) if isinstance(found, Mapping) else {DEFAULT: found}
    if not all(isinstance(text, str) for text in named.values()):
        raise CheckpointError(
            f"the chat template of model {checkpoint.name!r} is no text", hint=GIVE_ONE
        )
    return named


def read_operator_template(settings: HfTokenizerSettings) -> Mapping[str, str] | None:
    """Return the template that the settings name; None if they name none.

    Raises:
        ConfigError: the file cannot be read.
    """
    if settings.chat_template is None:
        return None
    path = Path(settings.chat_template)
    try:
        return {DEFAULT: path.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"tokenizer.chat_template {str(path)!r} cannot be read as text",
            hint="give the path of a Jinja file",
        ) from error
