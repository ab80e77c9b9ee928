"""Finds a saved text side and restores its parts; does not import transformers."""

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
from vlmkit_hf.images.standalone.processor import StandaloneProcessor
from vlmkit_hf.saved import file
from vlmkit_hf.saved.file import SavedText, TextFile
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.templates.sources import read_operator_template, refuse_without_default
from vlmkit_hf.text_side.parts import TextParts

log = logging.getLogger(__name__)

EXPORT_HINT = "export the model again: vlmkit export MODEL DIR"
PACKAGES = ("vlmkit-hf", "transformers", "tokenizers")


def read(checkpoint: Checkpoint, settings: HfTokenizerSettings) -> TextParts | None:
    """Return the parts of a saved text side, from beside the model or the user's cache.

    Return None if there is no valid one: transformers must resolve the parts then.

    Raises:
        ConfigError: the chat template of the settings cannot be read.
        CheckpointError: there are chat templates, and no default.
    """
    found = find_saved(checkpoint)
    if found is None or found[1].text is None:
        return None
    folder, text = found[0], found[1].text
    try:
        return parts_of(checkpoint, settings, folder, text)
    except CheckpointError as error:
        log.info("%s of model %r cannot be used: %s", file.FILE, checkpoint.name, error)
        return None


def find_saved(checkpoint: Checkpoint) -> tuple[Path, TextFile] | None:
    """Return the folder and content of a file that is valid for a model; None if there is none."""
    folders = [folder for folder in _folders(checkpoint) if (folder / file.FILE).is_file()]
    if not folders:
        return None
    try:
        sources = file.digests_of_sources(checkpoint.path)
    except OSError:
        return None  # loading the tokenizer reports the error
    named = (file.FILE, checkpoint.name)
    for folder in folders:
        try:
            content = file.read(folder)
        except CheckpointError as error:
            log.info("%s of model %r cannot be used: %s", *named, error)
            continue
        if content.sources != sources:
            log.info("%s of model %r does not match the files in its folder", *named)
        elif content.text is None and content.made_with != versions():
            log.info("%s of model %r holds a refusal of other versions", *named)
        else:
            return folder, content
    return None


def objection(checkpoint: Checkpoint) -> Objection | None:
    """Return why a model needs transformers, which is not installed; None if it does not.

    Loading then needs a saved text side of exactly these files.
    """
    found = find_saved(checkpoint)
    if found is not None and found[1].text is not None:
        return None
    if found is not None:
        reason = f"it needs transformers, which is not installed: {found[1].refusal}"
    elif checkpoint.has(file.FILE):
        reason = (
            f"{file.FILE!r} does not match the files in the folder, and without it transformers is "
            "needed, which is not installed"
        )
        return Objection(reason, hint=f"{EXPORT_HINT}; or {install_command('vlmkit-hf')}")
    else:
        reason = "it needs transformers, which is not installed"
    return Objection(reason, hint=install_command("vlmkit-hf"))


def cached_folder(checkpoint: Checkpoint) -> Path:
    """Return the folder of a model's text side in the user's cache; it may not exist.

    Raises:
        OSError: a file of the model cannot be read.
        RuntimeError: the user has no home folder.
    """
    hasher = hashlib.sha256()
    inputs = [str(file.FORMAT), *(f"{name} {_version(name)}" for name in PACKAGES)]
    inputs += map(str, file.digests_of_sources(checkpoint.path).items())
    hasher.update("\n".join(inputs).encode())
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        hasher.update(source.read_bytes())
    return user_cache.folder() / "text" / hasher.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of the packages that resolve a text side."""
    return {name: _version(name) for name in PACKAGES}


def parts_of(
    checkpoint: Checkpoint,
    settings: HfTokenizerSettings,
    folder: Path,
    text: SavedText,
) -> TextParts:
    """Restore the parts of a saved text side.

    Args:
        checkpoint: the model's files.
        settings: their chat template takes precedence over the saved ones.
        folder: the folder of the saved file, and of the tokenizer unless that is the model's.
        text: the saved text side.

    Raises:
        CheckpointError: the tokenizer has changed since, or the content is unknown here.
        ConfigError: the chat template of the settings cannot be read.
    """
    is_saved = text.tokenizer == file.OWN_TOKENIZER
    path = (folder if is_saved else checkpoint.path) / text.tokenizer
    try:
        if file.digest(path) != text.tokenizer_digest:
            raise CheckpointError(f"{path.name!r} is not the file that was written with it")
        backend = Tokenizer.from_file(str(path))
        images = None
        if text.images is not None:
            processor = StandaloneProcessor(text.images.processor)
            images = ImageSide(processor, checkpoint, text.images.facts)
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # tokenizers raises bare Exceptions only
        raise CheckpointError("its content is not supported here") from error
    templates = read_operator_template(settings)
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
