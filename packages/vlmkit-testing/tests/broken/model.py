"""Sources of models that break one promise each, made of one in a folder."""

import contextlib
import dataclasses
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from honest.model import NAMES, PREFIX, REVISIONS, Packaged, Store, fill

from broken.broken import Broken, Table
from vlmkit.errors import CheckpointError, PluginError, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_testing import ModelContract


class Changed(Store):
    """Changes what it gives."""

    def changed(self, checkpoint: Checkpoint) -> Any:
        raise NotImplementedError

    def build(self, context: BuildContext) -> Any:
        return self.changed(super().build(context))


class NamesNoFolder(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, path=checkpoint.path / "config.json")


class NamesAPlaceByText(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, path=str(checkpoint.path))  # type: ignore[arg-type]


class NamesARelativeFolder(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, path=Path(os.path.relpath(checkpoint.path)))


class HasNoConfig(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        (checkpoint.path / "config.json").unlink(missing_ok=True)
        return checkpoint


class LinksNowhere(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        link = checkpoint.path / "model.safetensors"
        if not link.is_symlink():
            link.symlink_to("../../blobs/0")
        return checkpoint


class HasPointers(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        told = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        (checkpoint.path / "model.safetensors").write_text(told)
        return checkpoint


class HasHalfOfItsJson(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        (checkpoint.path / "tokenizer.json").write_text('{"model": ')
        return checkpoint


class ListsItsConfig(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        (checkpoint.path / "config.json").write_text("[1]")
        return checkpoint


class CopiesEachTime(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        copy = self.folder / f"copy-{len(list(self.folder.iterdir()))}"
        shutil.copytree(checkpoint.path, copy)
        return dataclasses.replace(checkpoint, path=copy)


class WritesIntoIt(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        with (checkpoint.path / "used.txt").open("a") as file:
            file.write("once more\n")
        return checkpoint


class CallsItByItsFolder(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, name=checkpoint.path.parent.name)


class ForgetsTheRevision(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, revision=None)


class HasOneRevision(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, path=checkpoint.path.with_name(REVISIONS[0]))


class TakesTheNewestInstead(Store):
    def build(self, context: BuildContext) -> Checkpoint:
        known = context.revision if context.revision in REVISIONS else None
        made = super().build(dataclasses.replace(context, revision=known))
        return dataclasses.replace(made, revision=context.revision)


class TakesEverything(Store):
    def cannot_serve(self, reference: str) -> str | None:
        return None


class TakesPaths(Store):
    def cannot_serve(self, reference: str) -> str | None:
        return super().cannot_serve(reference) if "/" not in reference else None


class RefusesWithoutAWord(Store):
    def cannot_serve(self, reference: str) -> Any:
        return "" if super().cannot_serve(reference) is None else " "


class CrashesOnOddNames(Store):
    def cannot_serve(self, reference: str) -> str | None:
        owner, _ = reference.split("/")
        return None if owner == "team" else "it is of another team"


class TakesOthersNames(Packaged):
    def vlmkit_register_models(self, registry: Registry[Any]) -> None:
        registry.add(
            "store",
            lambda _: Checkpoint("store", self.folder / "tiny/first"),
            cannot_serve=lambda name: None if name.startswith("store") else "it has only store",
            description=self.description,
        )


class FailsByAKey(Store):
    def absent(self, reference: str) -> Exception:
        return KeyError(reference)


class GivesNoHint(Store):
    def absent(self, reference: str) -> Exception:
        return CheckpointError(f"model {reference!r} is not in the store")


class NamesNoModel(Store):
    def absent(self, reference: str) -> Exception:
        return CheckpointError("there is no such model", hint="look for another")


class AsksTheNetwork(Store):
    def absent(self, reference: str) -> Exception:
        socket.getaddrinfo("models.invalid", 443)
        return super().absent(reference)


class ListsWhatIsNotHere(Store):
    def list_models(self) -> Iterable[str]:
        return [*super().list_models(), f"{PREFIX}large"]


class ListsTwice(Store):
    def list_models(self) -> Iterable[str]:
        return [*super().list_models(), *super().list_models()]


class ListsFolders(Store):
    def list_models(self) -> Any:
        return [self.folder / name for name in NAMES]


class AsksForItsList(Store):
    def list_models(self) -> Iterable[str]:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", 9), timeout=0.1).close()
        return super().list_models()


class AsksWhoseItIs(Store):
    def cannot_serve(self, reference: str) -> str | None:
        with contextlib.suppress(OSError):
            socket.getaddrinfo("models.invalid", 443)
        return super().cannot_serve(reference)


class PreviewsWhatIsHere(Store):
    def previews(self, context: BuildContext) -> Iterator[Checkpoint]:
        yield dataclasses.replace(self.build(context), is_preview=True)


class SaysNothingOfItself(Store):
    description = ""


class SaysTooMuch(Store):
    description = "models\nof a team"


class OnStore(ModelContract):
    name = "store"

    def __init__(self, kind: type[Store]) -> None:
        self._folder = Path(tempfile.mkdtemp())
        fill(self._folder)
        self.plugin = kind(self._folder)

    def tidy(self) -> None:
        shutil.rmtree(self._folder)

    def revisions(self) -> tuple[str, ...]:
        return REVISIONS

    def absent(self) -> str:
        return f"{PREFIX}huge"


class OnPackaged(OnStore):
    def revisions(self) -> tuple[str, ...]:
        return ()


FOLDER = "a_model_is_a_folder_of_files"
REFUSES = "it_refuses_references_of_other_sources"
ABSENT = "a_model_that_it_does_not_have_is_an_error_with_a_hint"
LISTS = "listed_models_are_on_this_disk"
REVISION = "a_revision_is_the_requested_one"

TABLE = Table(
    ModelContract,
    OnStore,
    Store,
    (
        Broken(NamesNoFolder, "A model's path is a folder.", FOLDER),
        Broken(NamesAPlaceByText, "A model's path is a Path.", FOLDER),
        Broken(NamesARelativeFolder, "It is the same from wherever a program runs.", FOLDER),
        Broken(HasNoConfig, "The folder holds a config.", FOLDER),
        Broken(LinksNowhere, "Every file is there.", "its_files_are_real_files"),
        Broken(
            HasPointers,
            "Files are themselves, no notes of them.",
            "its_files_are_real_files",
        ),
        Broken(
            HasHalfOfItsJson,
            "Its JSON files are whole.",
            "its_small_files_can_be_read",
            raises=(CheckpointError,),
        ),
        Broken(
            ListsItsConfig,
            "A config is an object.",
            "its_small_files_can_be_read",
            raises=(CheckpointError,),
        ),
        Broken(CopiesEachTime, "A model is in one place.", "it_has_the_same_files_each_time"),
        Broken(
            WritesIntoIt,
            "Asking for a model changes no file.",
            "it_has_the_same_files_each_time",
        ),
        Broken(
            CallsItByItsFolder,
            "A model's name is how users call it.",
            "a_model_has_the_name_that_was_requested",
        ),
        Broken(ForgetsTheRevision, "A model says the revision that was asked for.", REVISION),
        Broken(HasOneRevision, "A revision has files of its own.", REVISION),
        Broken(TakesTheNewestInstead, "A revision that is not there is refused.", REVISION),
        Broken(TakesEverything, "cannot_serve refuses what is not its own.", REFUSES),
        Broken(TakesPaths, "Paths are folders' names.", REFUSES),
        Broken(
            RefusesWithoutAWord,
            "cannot_serve says why, in a sentence.",
            REFUSES,
        ),
        Broken(
            CrashesOnOddNames,
            "cannot_serve raises nothing, whatever it is asked.",
            REFUSES,
            raises=(ValueError,),
        ),
        Broken(
            TakesOthersNames,
            "A packaged model has its own name, and no other.",
            REFUSES,
            honest=Packaged,
            on=OnPackaged,
        ),
        Broken(
            FailsByAKey,
            "A model that is not there is a CheckpointError.",
            ABSENT,
            raises=(PluginError,),
        ),
        Broken(GivesNoHint, "Its hint says what to do.", ABSENT),
        Broken(NamesNoModel, "The error names the model.", ABSENT),
        Broken(
            AsksTheNetwork,
            "Without a network, too, it is an error of ours.",
            ABSENT,
            raises=(PluginError,),
        ),
        Broken(
            ListsWhatIsNotHere,
            "list_models() tells those on this disk.",
            LISTS,
            raises=(VlmkitError,),
        ),
        Broken(ListsTwice, "It tells each of them once.", LISTS),
        Broken(ListsFolders, "It tells them as users call them.", LISTS),
        Broken(AsksForItsList, "Listing fetches nothing.", "asking_fetches_nothing"),
        Broken(AsksWhoseItIs, "cannot_serve looks at small files only.", "asking_fetches_nothing"),
        Broken(
            PreviewsWhatIsHere,
            "What is on this disk is not shown before it is fetched.",
            "a_model_on_this_disk_has_no_previews",
        ),
        Broken(SaysNothingOfItself, "A provider is described in a line.", "it_has_a_description"),
        Broken(SaysTooMuch, "That is a single line.", "it_has_a_description"),
    ),
)
