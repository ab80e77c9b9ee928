"""The scopes of API keys. Imports nothing, because the command line lists them, too."""

from typing import Literal, get_args

Scope = Literal["chat", "embed", "tokens", "metrics", "admin"]
"""The permissions of a key.

``chat`` permits answers, ``embed`` embeddings, ``tokens`` prompts as raw tokens, ``metrics``
reading the output of monitors, and ``admin`` loading and unloading models.
"""

SCOPES: tuple[Scope, ...] = get_args(Scope)
