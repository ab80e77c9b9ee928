"""Where a checkpoint's chat template is, of the several places that it may be in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmkit.errors import ConfigError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.settings import HfTokenizerSettings

# PaliGemma publishes no template: images come first, then what is asked about them.
_PALIGEMMA = (
    "{% for message in messages %}{% if message['role'] != 'user' or not loop.last %}"
    "{{ raise_exception('this model answers a single message of a user') }}{% endif %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] }}{% endfor %}{% endfor %}"
)


def template_source(
    checkpoint: Checkpoint, tokenizer: Any, settings: HfTokenizerSettings
) -> str | None:
    """Return the operator's template, the processor's, or the tokenizer's, in this order.

    Raises:
        ConfigError: the operator's cannot be read.
    """
    if settings.chat_template is not None:
        return _operators_template(Path(settings.chat_template))
    processors = checkpoint.path / "chat_template.jinja"
    if processors.is_file():
        return processors.read_text(encoding="utf-8")
    found = checkpoint.read_json("chat_template.json").get("chat_template")
    found = found or checkpoint.read_json("processor_config.json").get("chat_template")
    found = found or tokenizer.chat_template
    if isinstance(found, Mapping):
        found = found.get("default")
    if found is None and checkpoint.model_type == "paligemma":
        return _PALIGEMMA
    return found if isinstance(found, str) else None


def _operators_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"tokenizer.chat_template {str(path)!r} cannot be read as text",
            hint="give the path of a Jinja file",
        ) from error
