"""Finds a text side that was written, and makes it what it was; imports no transformers."""

import hashlib
import importlib.metadata
import logging
from pathlib import Path

from tokenizers import Tokenizer

from vlmkit.errors import CheckpointError
from vlmkit.kit import user_cache
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import Objection
from vlmkit_hf.images.side import ImageSide
from vlmkit_hf.images.standalone.processor import LightProcessor
from vlmkit_hf.saved import file
from vlmkit_hf.saved.file import TextFile, WrittenText
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.templates.sources import operators_template, refuse_without_default
from vlmkit_hf.text_side.parts import TextParts

log = logging.getLogger(__name__)

EXPORT_HINT = "export the model again: vlmkit export MODEL DIR"
PACKAGES = ("vlmkit-hf", "transformers", "tokenizers")


def read(checkpoint: Checkpoint, settings: HfTokenizerSettings) -> TextParts | None:
    """Return a text side as it was written, beside the model or in the cache folder.

    None where there is none that counts: transformers has to resolve it.

    Raises:
        ConfigError: the chat template of the settings cannot be read.
        CheckpointError: none of the templates is the default.
    """
    found = written(checkpoint)
    if found is None or found[1].text is None:
        return None
    folder, text = found[0], found[1].text
    try:
        return parts_of(checkpoint, settings, folder, text)
    except CheckpointError as error:
        log.info("%s of model %r cannot be used: %s", file.FILE, checkpoint.name, error)
        return None


def written(checkpoint: Checkpoint) -> tuple[Path, TextFile] | None:
    """Return what was written of a model's files as they are, and in which folder; if it was."""
    folders = [folder for folder in _folders(checkpoint) if (folder / file.FILE).is_file()]
    if not folders:
        return None
    try:
        sources = file.digests_of_sources(checkpoint.path)
    except OSError:
        return None  # who loads the tokenizer says what is wrong
    named = (file.FILE, checkpoint.name)
    for folder in folders:
        try:
            content = file.read(folder)
        except CheckpointError as error:
            log.info("%s of model %r cannot be used: %s", *named, error)
            continue
        if content.sources != sources:
            log.info("%s of model %r is of other files than its folder has", *named)
        elif content.text is None and content.made_with != versions():
            log.info("%s of model %r says what other versions could not do", *named)
        else:
            return folder, content
    return None


def objection(checkpoint: Checkpoint) -> Objection | None:
    """Return why a model needs transformers, which is not installed; None if it does not.

    Loading then needs a saved text side of exactly these files.
    """
    found = written(checkpoint)
    if found is not None and found[1].text is not None:
        return None
    if found is not None:
        reason = f"it needs transformers, which is not installed: {found[1].refusal}"
    elif checkpoint.has(file.FILE):
        reason = (
            f"{file.FILE!r} is of other files than the folder has, and without it transformers is "
            "needed, which is not installed"
        )
        return Objection(reason, hint=f"{EXPORT_HINT}; or {install_command('vlmkit-hf')}")
    else:
        reason = "it needs transformers, which is not installed"
    return Objection(reason, hint=install_command("vlmkit-hf"))


def cached_folder(checkpoint: Checkpoint) -> Path:
    """Return where a model's text side is kept, or would be.

    Raises:
        OSError: one of its files cannot be read.
        RuntimeError: the user has no home.
    """
    whole = hashlib.sha256()
    facts = [str(file.FORMAT), *(f"{name} {_version(name)}" for name in PACKAGES)]
    facts += map(str, file.digests_of_sources(checkpoint.path).items())
    whole.update("\n".join(facts).encode())
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        whole.update(source.read_bytes())
    return user_cache.folder() / "text" / whole.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of what takes part in resolving a text side."""
    return {name: _version(name) for name in PACKAGES}


def parts_of(
    checkpoint: Checkpoint,
    settings: HfTokenizerSettings,
    folder: Path,
    text: WrittenText,
) -> TextParts:
    """Return a text side of what was written.

    Args:
        checkpoint: the model's files.
        settings: whose chat template counts before those that were written.
        folder: that the tokenizer lies in where it is not the model's own file.
        text: what was written.

    Raises:
        CheckpointError: the tokenizer is not the file that was written.
        ConfigError: the chat template of the settings cannot be read.
    """
    is_own = text.tokenizer == file.OWN_TOKENIZER
    path = (folder if is_own else checkpoint.path) / text.tokenizer
    try:
        if file.digest(path) != text.tokenizer_digest:
            raise CheckpointError(f"{path.name!r} is not the file that was written with it")
        backend = Tokenizer.from_file(str(path))
        images = None
        if text.images is not None:
            processor = LightProcessor(text.images.processor)
            images = ImageSide(processor, checkpoint, text.images.facts)
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # all that tokenizers raises is a bare Exception
        raise CheckpointError("it says what is not known here") from error
    templates = operators_template(settings)
    if templates is None:
        templates = text.templates
        refuse_without_default(checkpoint, templates)
    return TextParts(
        backend=backend,
        named={name: _listed(value) for name, value in text.named.items()},
        bos=text.bos,
        eos=text.eos,
        eos_ids=frozenset(text.eos_ids),
        templates=templates,
        images=images,
    )


def _listed(value: str | tuple[str, ...]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)


def _folders(checkpoint: Checkpoint) -> list[Path]:
    folders = [checkpoint.path]
    try:
        if (user_cache.folder() / "text").is_dir():
            folders.append(cached_folder(checkpoint))
    except (OSError, RuntimeError):
        log.debug("there is no cache folder", exc_info=True)
    return folders


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
