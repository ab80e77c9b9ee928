"""Hooks of vlmkit-hf: its tokenizer and its model sources.

transformers is imported when no saved text side fits the checkpoint. huggingface_hub is imported
when a model is fetched, listed or removed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit import heap
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.single_file import split_tag
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.kinds import MODEL
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side import files

VLMKIT_API = (1, 0)
_IS_SAVED = "vlmkit-hf: the text side was read as it was written"


def _build_tokenizer(context: BuildContext) -> Tokenizer:
    with heap.paused_collection():
        from vlmkit_hf.saved.reading import read
        from vlmkit_hf.text_side.tokenizer import HfTokenizer

    settings = context.settings or HfTokenizerSettings()
    parts = read(context.files, settings)
    if parts is None:
        from vlmkit_hf.text_side.loading import import_transformers

        import_transformers()
    else:
        context.share(_IS_SAVED, lambda: True)
    return HfTokenizer(context.files, settings, parts)


def _objection(checkpoint: Checkpoint) -> str | None:
    reason = files.objection(checkpoint)
    if reason is not None or files.is_installed("transformers"):
        return reason
    from vlmkit_hf.saved import reading

    return reading.objection(checkpoint)


def _examine_tokenizer(context: BuildContext) -> str:
    if files.is_awaited(context.files):
        return ""
    _build_tokenizer(context)  # reads no weights, and checks the chat template
    return ""


def _save(context: BuildContext, folder: Path | None) -> str | None:
    if folder is None and _IS_SAVED in context.shared:
        return None
    from vlmkit_hf.saved.writing import save

    return save(context.files, folder)


def _hub_objection(reference: str) -> str | None:
    from vlmkit_hf.hub import repository

    return repository.objection(reference)


def _fetch(context: BuildContext) -> Checkpoint:
    from vlmkit_hf.hub import fetching

    if split_tag(context.reference)[1]:
        suffixes = context.providers(MODEL).suffixes()
        return fetching.fetch_file(
            context.reference,
            context.revision,
            suffixes,
            projector=context.projector,
            is_update=context.is_update,
        )
    return fetching.fetch(context.reference, context.revision, is_update=context.is_update)


def _previews(context: BuildContext) -> Iterator[Checkpoint]:
    if split_tag(context.reference)[1]:
        return iter(())  # a file's suffix is known before it is fetched, and nothing else of it
    from vlmkit_hf.hub import previewing

    return previewing.previews(context.reference, context.revision, is_update=context.is_update)


def _remove(context: BuildContext) -> int:
    from vlmkit_hf.hub import cache

    return cache.remove(context.reference, context.revision)


def _cached() -> Sequence[str]:
    from vlmkit_hf.hub import cache

    return cache.cached_models()


def _read_gguf(context: BuildContext) -> Checkpoint:
    from vlmkit_quantized.gguf_alone import derived

    return derived(context.files)


def _gguf_cannot_serve(checkpoint: Any) -> str | None:
    file = getattr(checkpoint, "file", None)
    is_gguf = file is not None and file.suffix.lower() == ".gguf"
    return None if is_gguf else "it reads files that end with .gguf"


@hookimpl
def vlmkit_register_tokenizers(registry: Registry[Tokenizer]) -> None:
    """Register ``tokenizer.use = "hf"``."""
    registry.add(
        "hf",
        _build_tokenizer,
        cannot_serve=_objection,
        settings=HfTokenizerSettings,
        examine=_examine_tokenizer,
        description="tokenizer, chat template and image processor of a transformers checkpoint",
        keep=_save,
    )


@hookimpl
def vlmkit_register_models(registry: Registry[Checkpoint]) -> None:
    """Register the models of the Hugging Face hub, by their ids, and models in GGUF files alone."""
    registry.add(
        "huggingface",
        _fetch,
        cannot_serve=_hub_objection,
        description="safetensors checkpoints of the Hugging Face hub, by org/name",
        list_models=_cached,
        previews=_previews,
        remove=_remove,
    )
    registry.add(
        "gguf",
        _read_gguf,
        cannot_serve=_gguf_cannot_serve,
        suffixes=(".gguf",),
        description="a GGUF file with its tokenizer and chat template, and its mmproj file",
    )
