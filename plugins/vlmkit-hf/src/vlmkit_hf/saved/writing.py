"""Saves the text side that transformers resolved, after checking that the saved one is equal.

The saved text side becomes a second tokenizer. Both must agree on conversations, texts and images:
token ids, digests, transforms, and arrays bit for bit.
"""

import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from vlmkit.errors import VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.images.standalone.describing import UndescribedError, describe
from vlmkit_hf.saved import file
from vlmkit_hf.saved.comparison import difference
from vlmkit_hf.saved.file import SavedImages, SavedText, TextFile
from vlmkit_hf.saved.reading import cached_folder, find_saved, parts_of, versions
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.loading import import_transformers
from vlmkit_hf.text_side.parts import TextParts, resolve_parts
from vlmkit_hf.text_side.tokenizer import HfTokenizer


def save(checkpoint: Checkpoint, folder: Path | None = None) -> str | None:
    """Save a model's text side for later starts, unless it is saved already.

    Args:
        checkpoint: the model's files.
        folder: the model's folder, for an export; None saves to the user's cache.

    Returns:
        Why this model's prompts need transformers; None if they do not.

    Raises:
        CheckpointError: transformers cannot resolve the text side.
        OSError: the files cannot be written.
    """
    if folder is not None:
        return _write(checkpoint, folder)
    found = find_saved(checkpoint)
    if found is not None:
        return _why_not(found[1])
    target = cached_folder(checkpoint)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as folder_name:
        new = Path(folder_name)
        reason = _write(checkpoint, new)
        _publish(new, target)
    return reason


def _publish(new: Path, target: Path) -> None:
    """Move the new files to their folder, over files of the same names.

    The folder and its other files stay, since another process may be reading it. The tokenizer goes
    first, since the other file has its digest.
    """
    target.mkdir(exist_ok=True)
    for name in (file.OWN_TOKENIZER, file.FILE):
        if (new / name).is_file():
            (new / name).replace(target / name)


def _write(checkpoint: Checkpoint, folder: Path) -> str | None:
    import_transformers()
    settings = HfTokenizerSettings()
    parts = resolve_parts(checkpoint, settings)
    theirs = HfTokenizer(checkpoint, settings, parts)
    sources = dict(file.digests_of_sources(checkpoint.path))
    text, refusal = None, ""
    try:
        text = _describe(checkpoint, folder, parts)
        ours = HfTokenizer(checkpoint, settings, parts_of(checkpoint, settings, folder, text))
        if found := difference(theirs, ours):
            raise UndescribedError(found)
    except (UndescribedError, VlmkitError) as error:
        (folder / file.OWN_TOKENIZER).unlink(missing_ok=True)
        text, refusal = None, str(error)[: 2**10]
    new = TextFile(sources=sources, text=text, refusal=refusal, made_with=versions())
    file.write(folder, new)
    return _why_not(new)


def _why_not(content: TextFile) -> str | None:
    if content.text is not None:
        return None
    return (
        "prompts are made by transformers, which costs each start seconds, and hundreds of MiB "
        f"where torch is installed: {content.refusal}"
    )


def _describe(checkpoint: Checkpoint, folder: Path, parts: TextParts) -> SavedText:
    """Return a text side as data. Write its tokenizer unless it equals the model's own file.

    Raises:
        UndescribedError: the family's processor is not supported without transformers.
    """
    images = None
    if parts.images is not None:
        facts = parts.images.facts
        images = SavedImages(facts=facts, processor=describe(parts.images.processor, facts))
    path, content = checkpoint.path / "tokenizer.json", parts.backend.to_str()
    if not path.is_file() or Tokenizer.from_file(str(path)).to_str() != content:
        path = folder / file.OWN_TOKENIZER
        path.write_text(content, encoding="utf-8")
    return SavedText(
        tokenizer=path.name,  # type: ignore[arg-type]
        tokenizer_digest=file.digest(path),
        named={k: v if isinstance(v, str) else tuple(map(str, v)) for k, v in parts.named.items()},
        bos=parts.bos,
        eos=parts.eos,
        eos_ids=tuple(sorted(parts.eos_ids)),
        templates=dict(parts.templates),
        images=images,
    )
