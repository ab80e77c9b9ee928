"""The settings of vlmkit-hf."""

import msgspec

from vlmkit.settings.paths import InputFile


class HfTokenizerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[tokenizer]`` with ``use = "hf"``.

    Attributes:
        chat_template: path of a Jinja file to use in place of the checkpoint's chat template.
    """

    chat_template: InputFile | None = None
