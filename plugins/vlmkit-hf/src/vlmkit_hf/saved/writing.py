"""Writes down what transformers resolved of a text side, once both ways are seen to be equal.

What is written makes a second tokenizer, and the two have to agree on conversations, texts and
pictures: token ids, arrays bit for bit, digests, what is said of places.
"""

import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from vlmkit.errors import VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.images.standalone.describing import UndescribedError, describe
from vlmkit_hf.saved import file
from vlmkit_hf.saved.comparison import difference
from vlmkit_hf.saved.file import TextFile, WrittenImages, WrittenText
from vlmkit_hf.saved.reading import cached_folder, parts_of, versions, written
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.loading import import_transformers
from vlmkit_hf.text_side.parts import TextParts, resolved
from vlmkit_hf.text_side.tokenizer import HfTokenizer


def keep(checkpoint: Checkpoint, folder: Path | None = None) -> str | None:
    """Write a model's text side where later starts find it; if it is not there yet.

    Args:
        checkpoint: the model's files.
        folder: the model's own, whose files are written at the same time; None is a folder of the
            user's cache.

    Returns:
        Why only transformers can make prompts of the model; None where ours can.

    Raises:
        CheckpointError: transformers cannot read the text side.
        OSError: it cannot be written.
    """
    if folder is not None:
        return _write(checkpoint, folder)
    found = written(checkpoint)
    if found is not None:
        return _why_not(found[1])
    place = cached_folder(checkpoint)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=place.parent) as folder_name:
        made = Path(folder_name)
        reason = _write(checkpoint, made)
        _publish(made, place)
    return reason


def _publish(made: Path, place: Path) -> None:
    """Move the files that were written to their folder, over those that have their names.

    The folder itself stays, with whatever else is in it: another process may be reading it. The
    tokenizer goes first, since the other file names its digest.
    """
    place.mkdir(exist_ok=True)
    for name in (file.OWN_TOKENIZER, file.FILE):
        if (made / name).is_file():
            (made / name).replace(place / name)


def _write(checkpoint: Checkpoint, folder: Path) -> str | None:
    import_transformers()
    settings = HfTokenizerSettings()
    parts = resolved(checkpoint, settings)
    theirs = HfTokenizer(checkpoint, settings, parts)
    sources = dict(file.digests_of_sources(checkpoint.path))
    text, refusal = None, ""
    try:
        text = _described(checkpoint, folder, parts)
        ours = HfTokenizer(checkpoint, settings, parts_of(checkpoint, settings, folder, text))
        if found := difference(theirs, ours):
            raise UndescribedError(found)
    except (UndescribedError, VlmkitError) as error:
        (folder / file.OWN_TOKENIZER).unlink(missing_ok=True)
        text, refusal = None, str(error)[: 2**10]
    made = TextFile(sources=sources, text=text, refusal=refusal, made_with=versions())
    file.write(folder, made)
    return _why_not(made)


def _why_not(written_down: TextFile) -> str | None:
    if written_down.text is not None:
        return None
    return (
        "prompts are made by transformers, which costs each start seconds, and hundreds of MiB "
        f"where torch is installed: {written_down.refusal}"
    )


def _described(checkpoint: Checkpoint, folder: Path, parts: TextParts) -> WrittenText:
    """Return a text side as data; write its tokenizer, unless the model's own file is the same.

    Raises:
        UndescribedError: ours cannot do what its processor does.
    """
    images = None
    if parts.images is not None:
        facts = parts.images.facts
        images = WrittenImages(facts=facts, processor=describe(parts.images.processor, facts))
    path, content = checkpoint.path / "tokenizer.json", parts.backend.to_str()
    if not path.is_file() or Tokenizer.from_file(str(path)).to_str() != content:
        path = folder / file.OWN_TOKENIZER
        path.write_text(content, encoding="utf-8")
    return WrittenText(
        tokenizer=path.name,  # type: ignore[arg-type]
        tokenizer_digest=file.digest(path),
        named={k: v if isinstance(v, str) else tuple(map(str, v)) for k, v in parts.named.items()},
        bos=parts.bos,
        eos=parts.eos,
        eos_ids=tuple(sorted(parts.eos_ids)),
        templates=dict(parts.templates),
        images=images,
    )
