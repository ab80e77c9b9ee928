"""Model sources that break one promise each, derived from a source in a folder."""

import contextlib
import dataclasses
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from honest.model import (
    MARK,
    NAMES,
    PREFIX,
    REVISIONS,
    SUFFIX,
    Packaged,
    Reader,
    Store,
    fill,
    fill_single,
)

from broken.broken import Broken, Table
from vlmkit.errors import CheckpointError, PluginError, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.derived_files import derived_folder
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_testing import ModelContract


class Changed(Store):
    """Changes the model files that it returns."""

    def changed(self, checkpoint: Checkpoint) -> Any:
        raise NotImplementedError

    def build(self, context: BuildContext) -> Any:
        return self.changed(super().build(context))


class NamesNoFolder(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, path=checkpoint.path / "config.json")


class NamesAPathAsAString(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, path=str(checkpoint.path))  # type: ignore[arg-type]


class NamesARelativeFolder(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, path=Path(os.path.relpath(checkpoint.path)))


class HasNoConfig(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        (checkpoint.path / "config.json").unlink(missing_ok=True)
        return checkpoint


class HasDanglingLinks(Changed):
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


class HasTruncatedJson(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        (checkpoint.path / "tokenizer.json").write_text('{"model": ')
        return checkpoint


class HasAListAsConfig(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        (checkpoint.path / "config.json").write_text("[1]")
        return checkpoint


class CopiesTheModelEachTime(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        copy = self.folder / f"copy-{len(list(self.folder.iterdir()))}"
        shutil.copytree(checkpoint.path, copy)
        return dataclasses.replace(checkpoint, path=copy)


class WritesIntoTheModel(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        with (checkpoint.path / "used.txt").open("a") as file:
            file.write("once more\n")
        return checkpoint


class NamesTheModelByItsFolder(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, name=checkpoint.path.parent.name)


class OmitsTheRevision(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, revision=None)


class HasOneRevision(Changed):
    def changed(self, checkpoint: Checkpoint) -> Any:
        return dataclasses.replace(checkpoint, path=checkpoint.path.with_name(REVISIONS[0]))


class ReplacesAMissingRevisionByTheNewest(Store):
    def build(self, context: BuildContext) -> Checkpoint:
        known = context.revision if context.revision in REVISIONS else None
        made = super().build(dataclasses.replace(context, revision=known))
        return dataclasses.replace(made, revision=context.revision)


class AcceptsEverything(Store):
    def cannot_serve(self, reference: str) -> str | None:
        return None


class AcceptsPaths(Store):
    def cannot_serve(self, reference: str) -> str | None:
        return super().cannot_serve(reference) if "/" not in reference else None


class RefusesWithoutAReason(Store):
    def cannot_serve(self, reference: str) -> Any:
        return "" if super().cannot_serve(reference) is None else " "


class CrashesOnOddNames(Store):
    def cannot_serve(self, reference: str) -> str | None:
        owner, _ = reference.split("/")
        return None if owner == "team" else "it is of another team"


class AcceptsNamesOfOthers(Packaged):
    def vlmkit_register_models(self, registry: Registry[Any]) -> None:
        registry.add(
            "store",
            lambda _: Checkpoint("store", self.folder / "tiny/first"),
            cannot_serve=lambda name: None if name.startswith("store") else "it has only store",
            description=self.description,
        )


class RaisesAKeyError(Store):
    def absent(self, reference: str) -> Exception:
        return KeyError(reference)


class GivesNoHint(Store):
    def absent(self, reference: str) -> Exception:
        return CheckpointError(f"model {reference!r} is not in the store")


class NamesNoModel(Store):
    def absent(self, reference: str) -> Exception:
        return CheckpointError("there is no such model", hint="look for another")


class QueriesTheNetwork(Store):
    def absent(self, reference: str) -> Exception:
        socket.getaddrinfo("models.invalid", 443)
        return super().absent(reference)


class ListsModelsThatAreNotHere(Store):
    def list_models(self) -> Iterable[str]:
        return [*super().list_models(), f"{PREFIX}large"]


class ListsTwice(Store):
    def list_models(self) -> Iterable[str]:
        return [*super().list_models(), *super().list_models()]


class ListsFolders(Store):
    def list_models(self) -> Any:
        return [self.folder / name for name in NAMES]


class FetchesItsList(Store):
    def list_models(self) -> Iterable[str]:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", 9), timeout=0.1).close()
        return super().list_models()


class FetchesToCheckAReference(Store):
    def cannot_serve(self, reference: str) -> str | None:
        with contextlib.suppress(OSError):
            socket.getaddrinfo("models.invalid", 443)
        return super().cannot_serve(reference)


class PreviewsModelsOnThisDisk(Store):
    def previews(self, context: BuildContext) -> Iterator[Checkpoint]:
        yield dataclasses.replace(self.build(context), is_preview=True)


class HasNoDescription(Store):
    description = ""


class HasADescriptionOfTwoLines(Store):
    description = "models\nof a team"


class DropsTheFile(Reader):
    def build(self, context: BuildContext) -> Checkpoint:
        return dataclasses.replace(super().build(context), file=None)


class NamesTheFileByItsConfig(Reader):
    def build(self, context: BuildContext) -> Checkpoint:
        made = super().build(context)
        return dataclasses.replace(made, name=made.model_type)


class WritesNoConfig(Reader):
    def derived(self, file: Path, config: bytes) -> Path:
        return derived_folder(file, {"notes.txt": config})


class WritesBesideTheFile(Reader):
    def derived(self, file: Path, config: bytes) -> Path:
        (file.parent / "config.json").write_bytes(config)
        return super().derived(file, config)


class TouchesTheFile(Reader):
    def derived(self, file: Path, config: bytes) -> Path:
        os.utime(file)
        return super().derived(file, config)


class RemembersFilesByName(Reader):
    def derived(self, file: Path, config: bytes) -> Path:
        place = self.folder / "remembered" / file.name
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "config.json").exists():
            (place / "config.json").write_bytes(config)
        return place


class AcceptsTruncatedFiles(Reader):
    def config(self, file: Path) -> bytes:
        content = file.read_bytes()
        if not content.startswith(MARK):
            raise self.broken(file)
        return b"{}"


class NamesNoFile(Reader):
    def broken(self, file: Path) -> Exception:
        return CheckpointError("the file is broken", hint="fetch it again")


class GivesNoHintForFiles(Reader):
    def broken(self, file: Path) -> Exception:
        return CheckpointError(f"{file.name!r} is broken")


class FailsOnEmptyFiles(Reader):
    def config(self, file: Path) -> bytes:
        assert file.stat().st_size
        return super().config(file)


class AcceptsEveryFile(Reader):
    def vlmkit_register_models(self, registry: Registry[Any]) -> None:
        registry.add(
            "store",
            self.build,
            suffixes=(SUFFIX,),
            cannot_serve=lambda _: None,
            description=self.description,
        )


class ListsItsFolderOnce(Store):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.found: list[str] = []

    def names(self) -> list[str]:
        self.found = self.found or super().names()
        return self.found


class KeepsTheRevision(Store):
    revision: str | None = None

    def build(self, context: BuildContext) -> Checkpoint:
        self.revision = context.revision or self.revision
        made = super().build(dataclasses.replace(context, revision=self.revision))
        return dataclasses.replace(made, revision=context.revision)


class ListsOnce(Store):
    listed: Iterator[str] | None = None

    def list_models(self) -> Iterable[str]:
        self.listed = self.listed or iter(super().list_models())
        return self.listed


class AcceptsEverythingOnceUsed(Store):
    is_used = False

    def build(self, context: BuildContext) -> Checkpoint:
        self.is_used = True
        return super().build(context)

    def cannot_serve(self, reference: str) -> str | None:
        return None if self.is_used else super().cannot_serve(reference)


class RefusesInTwoLines(Store):
    def cannot_serve(self, reference: str) -> str | None:
        reason = super().cannot_serve(reference)
        return reason and f"{reason}\n{reason}"


class OwnFingerprint(Checkpoint):
    """A model's folder with another fingerprint."""

    def fact(self, file: Path) -> object:
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        files = sorted(path for path in self.path.rglob("*") if path.is_file())
        facts = [(path.name, self.fact(path)) for path in files if path.name[0] != "."]
        return hashlib.sha256(repr(facts).encode()).hexdigest()


class OfSizesAndTimes(OwnFingerprint):
    def fact(self, file: Path) -> object:
        return file.stat().st_size, file.stat().st_mtime_ns


class OfSizes(OwnFingerprint):
    def fact(self, file: Path) -> object:
        return file.stat().st_size


class OfConfigs(OwnFingerprint):
    def fact(self, file: Path) -> object:
        return file.read_bytes() if file.name == "config.json" else None


class OfFirstBytes(OwnFingerprint):
    def fact(self, file: Path) -> object:
        return file.stat().st_size, file.read_bytes()[:8]


class OfContents(OwnFingerprint):
    def fact(self, file: Path) -> object:
        return file.read_bytes()


class OfPaths(OwnFingerprint):
    def fact(self, file: Path) -> object:
        return str(file), file.read_bytes()


class Fingerprinted(Changed):
    """Returns models with another fingerprint, which is correct here."""

    kind: type[OwnFingerprint] = OfContents

    def changed(self, checkpoint: Checkpoint) -> Checkpoint:
        return self.kind(checkpoint.name, checkpoint.path, checkpoint.revision)


class ComparesSizesAndTimes(Fingerprinted):
    kind = OfSizesAndTimes


class ComparesSizes(Fingerprinted):
    kind = OfSizes


class ComparesConfigs(Fingerprinted):
    kind = OfConfigs


class ComparesFirstBytes(Fingerprinted):
    kind = OfFirstBytes


class ComparesPaths(Fingerprinted):
    kind = OfPaths


class RemembersFilesByTheirTimes(Reader):
    """Keeps the fingerprint of a file of equal size and time."""

    def build(self, context: BuildContext) -> Checkpoint:
        made = super().build(context)
        assert made.file is not None
        return OfSizesAndTimes(made.name, made.file.parent, file=made.file)


class OnReader(ModelContract):
    name = "store"

    def __init__(self, kind: type[Reader]) -> None:
        self._folder = Path(tempfile.mkdtemp())
        (self._folder / "models").mkdir()
        self._files = fill_single(self._folder / "models")
        self._cache = mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self._folder / "cache"))
        self._cache.start()
        self.plugin = kind(self._folder)

    def tidy(self) -> None:
        self._cache.stop()
        shutil.rmtree(self._folder)

    def files(self) -> list[Path]:
        return self._files


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

    def added(self) -> str | None:
        fill(self._folder, ["new"])
        return f"{PREFIX}new"


class OnPackaged(OnStore):
    def revisions(self) -> tuple[str, ...]:
        return ()


CONTENT = "a_fingerprint_is_that_of_names_and_content"
SINGLE = "a_single_file_becomes_a_model"
BESIDE = "reading_a_file_changes_nothing_beside_it"
BROKEN = "a_broken_file_is_refused_by_its_name"
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
        Broken(
            ListsItsFolderOnce,
            "A model that is added is listed and found.",
            "a_model_that_is_added_is_found",
        ),
        *(
            Broken(kind, promise, CONTENT, honest=Fingerprinted)
            for kind, promise in (
                (ComparesSizesAndTimes, "A fingerprint does not cover the times of files."),
                (ComparesSizes, "A fingerprint changes with a file of equal size."),
                (ComparesConfigs, "A fingerprint changes with any file."),
                (ComparesFirstBytes, "A fingerprint changes with any byte."),
                (ComparesPaths, "A fingerprint does not cover the place of the files."),
            )
        ),
        Broken(
            RemembersFilesByTheirTimes,
            "The fingerprint of a single file changes with its content.",
            "the_fingerprint_of_a_file_is_that_of_its_content",
            honest=Reader,
            on=OnReader,
        ),
        Broken(NamesNoFolder, "The path of a model is a folder.", FOLDER),
        Broken(NamesAPathAsAString, "The path of a model is a Path.", FOLDER),
        Broken(NamesARelativeFolder, "The path of a model is absolute.", FOLDER),
        Broken(HasNoConfig, "The folder contains a config.", FOLDER),
        Broken(HasDanglingLinks, "Every file exists.", "its_files_are_real_files"),
        Broken(
            HasPointers,
            "Files are real files, not LFS pointers.",
            "its_files_are_real_files",
        ),
        Broken(
            HasTruncatedJson,
            "JSON files are complete.",
            "its_small_files_can_be_read",
            raises=(CheckpointError,),
        ),
        Broken(
            HasAListAsConfig,
            "A config is a JSON object.",
            "its_small_files_can_be_read",
            raises=(CheckpointError,),
        ),
        Broken(
            CopiesTheModelEachTime,
            "A model has the same path each time.",
            "it_has_the_same_files_each_time",
        ),
        Broken(
            WritesIntoTheModel,
            "Resolving a model changes no file.",
            "it_has_the_same_files_each_time",
        ),
        Broken(
            NamesTheModelByItsFolder,
            "The name of a model is the one that users write.",
            "a_model_has_the_name_that_was_requested",
        ),
        Broken(OmitsTheRevision, "A model states the requested revision.", REVISION),
        Broken(HasOneRevision, "Each revision has its own files.", REVISION),
        Broken(ReplacesAMissingRevisionByTheNewest, "A missing revision is refused.", REVISION),
        Broken(AcceptsEverything, "cannot_serve refuses references of other sources.", REFUSES),
        Broken(AcceptsPaths, "cannot_serve refuses paths.", REFUSES),
        Broken(
            RefusesWithoutAReason,
            "cannot_serve returns the reason as a sentence.",
            REFUSES,
        ),
        Broken(
            CrashesOnOddNames,
            "cannot_serve never raises.",
            REFUSES,
            raises=(ValueError,),
        ),
        Broken(
            AcceptsNamesOfOthers,
            "A packaged model serves only its own name.",
            REFUSES,
            honest=Packaged,
            on=OnPackaged,
        ),
        Broken(
            RaisesAKeyError,
            "A missing model raises a CheckpointError.",
            ABSENT,
            raises=(PluginError,),
        ),
        Broken(GivesNoHint, "The hint of the error names a remedy.", ABSENT),
        Broken(NamesNoModel, "The error names the model.", ABSENT),
        Broken(
            QueriesTheNetwork,
            "Without a network, a missing model raises an error of vlmkit.",
            ABSENT,
            raises=(PluginError,),
        ),
        Broken(
            ListsModelsThatAreNotHere,
            "list_models() lists only models on this disk.",
            LISTS,
            raises=(VlmkitError,),
        ),
        Broken(ListsTwice, "list_models() lists each model once.", LISTS),
        Broken(ListsFolders, "list_models() uses the names that users write.", LISTS),
        Broken(FetchesItsList, "list_models() fetches nothing.", "asking_fetches_nothing"),
        Broken(FetchesToCheckAReference, "cannot_serve fetches nothing.", "asking_fetches_nothing"),
        Broken(
            PreviewsModelsOnThisDisk,
            "A model on this disk has no preview.",
            "a_model_on_this_disk_has_no_previews",
        ),
        *(
            Broken(component, promise, killed_by, raises, honest=Reader, on=OnReader)
            for component, promise, killed_by, raises in (
                (DropsTheFile, "The model of a single file has the file.", SINGLE, ()),
                (NamesTheFileByItsConfig, "It has the name of the file.", SINGLE, ()),
                (WritesNoConfig, "Its folder has a config.", SINGLE, ()),
                (WritesBesideTheFile, "Nothing is written beside a single file.", BESIDE, ()),
                (TouchesTheFile, "A single file is not changed.", BESIDE, ()),
                (
                    RemembersFilesByName,
                    "What is derived from a file is not used for another.",
                    "another_file_has_another_folder",
                    (),
                ),
                (AcceptsTruncatedFiles, "A truncated file is refused.", BROKEN, ()),
                (NamesNoFile, "The error of a broken file names it.", BROKEN, ()),
                (GivesNoHintForFiles, "The hint of that error names a remedy.", BROKEN, ()),
                (
                    FailsOnEmptyFiles,
                    "An empty file raises an error of vlmkit.",
                    BROKEN,
                    (PluginError,),
                ),
                (
                    AcceptsEveryFile,
                    "cannot_serve refuses files of other suffixes.",
                    "it_reads_only_files_of_its_suffixes",
                    (),
                ),
            )
        ),
        Broken(HasNoDescription, "A provider has a description.", "it_has_a_description"),
        Broken(
            HasADescriptionOfTwoLines,
            "The description of a provider is one line.",
            "it_has_a_description",
        ),
        Broken(
            KeepsTheRevision,
            "Without a revision, a model is the newest, whatever was built before.",
            REVISION,
        ),
        Broken(ListsOnce, "list_models() may be called again.", LISTS),
        Broken(
            AcceptsEverythingOnceUsed,
            "cannot_serve refuses references of other sources at any time.",
            REFUSES,
        ),
        Broken(RefusesInTwoLines, "The reason of a refusal is one line.", REFUSES),
    ),
)
