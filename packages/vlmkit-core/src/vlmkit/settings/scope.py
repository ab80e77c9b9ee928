"""What an API key may do, by name. Imports nothing: the command line lists them, too."""

from typing import Literal, get_args

Scope = Literal["chat", "embed", "tokens", "metrics", "admin"]
"""What a key may do: ask for answers, for embeddings, send prompts that are tokens as they are,
read what monitors show, and load and unload models."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
