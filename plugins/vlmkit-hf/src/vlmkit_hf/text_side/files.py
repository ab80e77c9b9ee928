"""Checks whether a folder has a tokenizer that can be loaded here; imports nothing heavy.

transformers converts the vocabularies of SentencePiece and tiktoken, and needs those libraries for
it.
"""

import importlib.util
from pathlib import Path

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import Objection

FETCH_HINT = "fetch tokenizer.json and tokenizer_config.json of the same model"

_READY = ("tokenizer.json", "vocab.txt", "tekken.json")
_NEEDED = ("sentencepiece", "tiktoken", "google.protobuf")
_VOCABULARIES = ("*.model", "*.tiktoken")


def objection(checkpoint: Checkpoint) -> str | None:
    """Return why a folder's tokenizer cannot be loaded; None if its files are complete."""
    if any(checkpoint.has(file) for file in _READY):
        return None
    if checkpoint.has("vocab.json"):
        if checkpoint.has("merges.txt"):
            return None
        return Objection("'vocab.json' is there, and 'merges.txt' is missing", hint=FETCH_HINT)
    found = sorted(path for kind in _VOCABULARIES for path in checkpoint.path.glob(kind))
    if not found:
        return Objection("the model's folder has no tokenizer.json", hint=FETCH_HINT)
    if absent := [name for name in _NEEDED if not is_installed(name)]:
        return Objection(
            f"the tokenizer is there as {found[0].name!r} alone, and to convert it "
            f"{' and '.join(absent)} must be installed",
            hint=f"{install_command('vlmkit-hf[convert]')}; or {FETCH_HINT}",
        )
    if not _is_sentencepiece(found[0]) and not _names_control_tokens(checkpoint):
        return Objection(
            f"the tokenizer is there as {found[0].name!r} of tiktoken alone, which does not say "
            "what its control tokens are",
            hint=FETCH_HINT,
        )
    return None


def is_awaited(checkpoint: Checkpoint) -> bool:
    """Tell whether the vocabulary has not been fetched yet: its file is empty in a preview."""
    files = (path for kind in (*_READY, *_VOCABULARIES) for path in checkpoint.path.glob(kind))
    return checkpoint.is_preview and any(path.stat().st_size == 0 for path in files)


def is_installed(module: str) -> bool:
    """Tell whether a module can be imported; does not import it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the module's package is absent
        return False


def _is_sentencepiece(path: Path) -> bool:
    """Tell a protocol buffer, which starts with its first piece, from lines of text."""
    with path.open("rb") as file:
        return file.read(1) == b"\n"


def _names_control_tokens(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.read_json("tokenizer_config.json").get("added_tokens_decoder"))
