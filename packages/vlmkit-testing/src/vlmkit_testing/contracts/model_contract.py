"""What every source of models, and every packaged model, must do."""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence as Seq
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from vlmkit.checkpoints.folder import CONFIGS
from vlmkit.errors import CheckpointError, PluginUnavailable
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.lfs_pointer import is_pointer
from vlmkit.plugins.build_context import BuildContext
from vlmkit.plugins.provider import Provider
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.registry import Registry

PATHS = ("./model", "../model", "~/model", "/models/tiny", "C:\\models\\tiny", "a/b/c/d")
NONSENSE = ("", " ", "\0", "é" * 999, "a b", "--help", "..", "nobody/../../etc", "none://", "%s{}")
NOBODYS = "nobody/has-this-model"
NO_REVISION = "no-such-revision"
MAX_TRIED = 3
MAX_CHANGED = 4  # files of a model, the largest first
MAX_COPIED_BYTES = 64 * 2**20
LONG_AGO_NS = 10**18  # in 2001

Files = dict[str, tuple[int, int]]


class ModelContract:
    """Inherit it, set ``plugin`` and ``name``, and run pytest. No network is needed.

    Attributes:
        plugin: the module with the hook ``vlmkit_register_models``.
        name: the provider's name.
    """

    plugin: Any = None
    name = ""

    def registry(self) -> Registry[Checkpoint]:
        """Return the plugin's providers."""
        registries = Registries("tests")
        self.plugin.vlmkit_register_models(registries.models)
        found: Registry[Checkpoint] = registries.models
        return found

    def references(self) -> Seq[str]:
        """Return references of models on this disk, as users write them."""
        offered = self._offered()
        if offered.is_packaged:
            return [self.name]
        return list(offered.list_models()) if offered.list_models else []

    def revisions(self) -> Seq[str]:
        """Return revisions of the first of these models, all different; none by default."""
        return ()

    def files(self) -> Seq[Path]:
        """Return two files that a source of single files reads; none by default."""
        return ()

    def absent(self) -> str:
        """Return a reference of its own scheme to a model that it does not have."""
        return NOBODYS

    def added(self) -> str | None:
        """Put another model on this disk, as a user would, and return its reference.

        None, the default, skips the test of it.
        """
        return None

    # Files

    def test_a_model_is_a_folder_of_files(self) -> None:
        """It has a config, which says what the model is."""
        for checkpoint in self._checkpoints():
            assert isinstance(checkpoint, Checkpoint)
            assert isinstance(checkpoint.path, Path)
            assert checkpoint.path.is_absolute()
            assert checkpoint.path.is_dir()
            assert checkpoint.has(CONFIGS)

    def test_its_files_are_real_files(self) -> None:
        """No dangling link, and no pointer in place of a file."""
        for checkpoint in self._checkpoints():
            for path in checkpoint.path.rglob("*"):
                assert path.exists(), f"{path.name} leads nowhere"
                assert not path.is_file() or not is_pointer(path), f"{path.name} is a pointer"

    def test_its_small_files_can_be_read(self) -> None:
        """In the format of their names, and within their bounds."""
        for checkpoint in self._checkpoints():
            assert isinstance(checkpoint.config, dict)
            for path in checkpoint.path.glob("*.json"):
                try:
                    checkpoint.read_json(path.name)
                except CheckpointError:
                    checkpoint.read_json_list(path.name)

    def test_it_has_the_same_files_each_time(self) -> None:
        """In the same folder, and building changes none."""
        for reference in self._here():
            one = self._build(reference)
            before = _files(one)
            other = self._build(reference)
            assert other == one
            assert before
            assert _files(other) == before

    def test_a_fingerprint_is_that_of_names_and_content(self) -> None:
        """Any byte counts, and any file, but no time and no hidden file.

        A file may change without another size or time; so can a copy in another folder.
        """
        checkpoint = self._smallest()
        with tempfile.TemporaryDirectory() as name:
            copy = Path(name).resolve() / "model"
            shutil.copytree(checkpoint.path, copy)

            def found() -> str:
                return replace(checkpoint, path=copy).fingerprint

            expected = found()
            assert expected == checkpoint.fingerprint, "the place of a model is in its fingerprint"
            for file in _visible(copy):
                os.utime(file, ns=(LONG_AGO_NS, LONG_AGO_NS))
            assert found() == expected, "the times of files are in a fingerprint"
            (copy / ".hidden").write_bytes(b"of a download")
            assert found() == expected, "a hidden file is in a fingerprint"
            for number, file in enumerate(_visible(copy)[:MAX_CHANGED]):
                for offset in _offsets(file) if number == 0 else _offsets(file)[-1:]:
                    _flip(file, offset)
                    assert found() != expected, f"byte {offset} of {file.name} is not in it"
                    _flip(file, offset)
            assert found() == expected
            added = copy / "added.json"
            added.touch()
            fingerprints = {expected, found()}
            added.rename(copy / "renamed.json")
            assert len(fingerprints | {found()}) == 3, "the names of files are not in a fingerprint"

    # Single files

    def test_a_single_file_becomes_a_model(self) -> None:
        """With the file itself, its name, and a folder with a config."""
        for file in self._single_files():
            checkpoint = self._read(file)
            assert isinstance(checkpoint, Checkpoint)
            assert checkpoint.file == file
            assert checkpoint.name == file.name
            assert checkpoint.path.is_absolute()
            assert checkpoint.path.is_dir()
            assert checkpoint.has(CONFIGS)
            assert self._read(file) == checkpoint

    def test_reading_a_file_changes_nothing_beside_it(self) -> None:
        """The folder is the user's, and may be read-only."""
        for file in self._single_files():
            before = _contents(file.parent)
            self._read(file)
            assert _contents(file.parent) == before

    def test_another_file_has_another_folder(self) -> None:
        """What is derived from one file is never used for another, also if that has its name."""
        files = self._single_files()
        with tempfile.TemporaryDirectory() as name:
            place = Path(name).resolve() / files[0].name
            found = []
            for file in files[:2]:
                shutil.copyfile(file, place)
                found.append(self._read(place))
                assert found[-1].has(CONFIGS)
        if len(found) < 2:
            pytest.skip("name two files")
        assert found[0].path != found[1].path

    def test_the_fingerprint_of_a_file_is_that_of_its_content(self) -> None:
        """The last byte counts, without another size or time, and no time does."""
        original = self._single_files()[0]
        with tempfile.TemporaryDirectory() as name:
            file = Path(name).resolve() / original.name
            shutil.copyfile(original, file)
            expected = self._read(file).fingerprint
            os.utime(file, ns=(LONG_AGO_NS, LONG_AGO_NS))
            assert self._read(file).fingerprint == expected, "its time is in the fingerprint"
            _flip(file, file.stat().st_size - 1)
            with suppress(CheckpointError):  # it may have a checksum
                assert self._read(file).fingerprint != expected, "its last byte does not count"

    def test_a_broken_file_is_refused_by_its_name(self) -> None:
        """Empty, cut in half, or of other content: the error names it, with a hint."""
        whole = self._single_files()[0]
        content = whole.read_bytes()
        with tempfile.TemporaryDirectory() as name:
            broken = Path(name).resolve() / f"broken{self._offered().suffixes[0]}"
            for part in (b"", content[: len(content) // 2], bytes(len(content)), b"{" * 9999):
                broken.write_bytes(part)
                with pytest.raises((CheckpointError, PluginUnavailable)) as caught:
                    self._read(broken)
                assert broken.name in str(caught.value)
                assert caught.value.hint

    def test_it_reads_only_files_of_its_suffixes(self) -> None:
        """It refuses other files, and models in folders."""
        file = self._single_files()[0]
        assert self._refusal(Checkpoint(file.name, file.parent, file=file)) is None
        for other in (None, file.with_suffix(".other"), file.with_name("model")):
            reason = self._refusal(Checkpoint("other", file.parent, file=other))
            assert isinstance(reason, str)
            assert reason.strip()

    # Names and revisions

    def test_a_model_has_the_name_that_was_requested(self) -> None:
        """Servers list it by this name."""
        for reference in self._here():
            assert self._build(reference).name == reference

    def test_a_revision_is_the_requested_one(self) -> None:
        """Each revision has its own files; an unknown one is refused or ignored."""
        reference = self._here()[0]
        newest = self._build(reference)
        assert newest.revision is None
        found = []
        for revision in self.revisions():
            found.append(self._build(reference, revision))
            assert self._build(reference) == newest, "it has the revision of an earlier request"
        assert [checkpoint.revision for checkpoint in found] == list(self.revisions())
        assert len({checkpoint.fingerprint for checkpoint in found}) == len(found)
        try:
            with _no_network():
                unknown = self._build(reference, NO_REVISION)
        except CheckpointError as error:
            assert str(error)
        else:
            assert unknown.revision is None
            assert not found, "a revision that is not there is another one's files"

    # What it does not have

    def test_it_refuses_references_of_other_sources(self) -> None:
        """Paths belong to folders, and other texts to no source."""
        offered = self._offered()
        self._skip_reader()
        for reference in self._here():
            assert not self._refusal(reference)
            self._build(reference)
        for reference in (*PATHS, *NONSENSE):
            reason = self._refusal(reference)
            assert isinstance(reason, str), reference
            assert reason.strip(), reference
            assert "\n" not in reason, reference
        if offered.is_packaged:
            assert self._refusal(NOBODYS)
            assert self._refusal(f"{self.name}-2")

    def test_a_model_that_it_does_not_have_is_an_error_with_a_hint(self) -> None:
        """Also without a network; the hint says what to do."""
        absent = self.absent()
        offered = self._offered()
        self._skip_reader()
        if self._refusal(absent):
            assert offered.is_packaged, "absent() must return one that it could have"
            pytest.skip("it takes nothing but what it has")
        with _no_network(), pytest.raises(CheckpointError) as caught:
            self._build(absent)
        assert str(caught.value)
        assert caught.value.hint
        assert repr(absent) in str(caught.value)

    # What is listed

    def test_listed_models_are_on_this_disk(self) -> None:
        """They are built without a network."""
        listing = self._offered().list_models
        if listing is None:
            pytest.skip("it is a packaged model, or lists none")
        with _no_network():
            listed = list(listing())
            assert all(isinstance(reference, str) for reference in listed)
            assert len(set(listed)) == len(listed)
            assert list(listing()) == listed
            assert set(self.references()) <= set(listed)
            for reference in islice(listed, MAX_TRIED):
                assert not self._refusal(reference)
                assert self._build(reference).has(CONFIGS)

    def test_a_model_that_is_added_is_found(self) -> None:
        """By providers that have listed and built before."""
        registry, listing = self.registry(), self._offered().list_models
        before = [] if listing is None else list(listing())
        for reference in self._here():
            self._build(reference, registry=registry)
        if (new := self.added()) is None:
            pytest.skip("override added() to run this test")
        assert new not in before
        assert listing is None or sorted(listing()) == sorted([*before, new])
        assert self._build(new, registry=registry).has(CONFIGS)

    def test_asking_fetches_nothing(self) -> None:
        """``cannot_serve``, ``list_models`` and models on this disk use no network."""
        offered = self._offered()
        with _no_network() as tried:
            for reference in (*self._here(), *PATHS, self.absent()):
                self._refusal(reference)
            if offered.list_models is not None:
                list(offered.list_models())
            else:
                self._build(self._here()[0])
        assert not tried

    def test_a_model_on_this_disk_has_no_previews(self) -> None:
        """Previews are of models whose weights are not on this disk."""
        if self._offered().previews is None:
            pytest.skip("it shows no model before it is fetched")
        registry = self.registry()
        with _no_network():
            for reference in self._here():
                context = BuildContext(reference, registries={"models": registry})
                assert not list(registry.previews(self.name, context))

    def test_it_has_a_description(self) -> None:
        """One line for lists, and a check of this machine that does not raise."""
        offered = self._offered()
        assert offered.description.strip()
        assert "\n" not in offered.description
        assert offered.why_not() is None or offered.why_not()

    # Helpers

    def _offered(self) -> Provider[Checkpoint]:
        return self.registry().get(self.name)

    def _skip_reader(self) -> None:
        """Skip a test of references: a source that owns suffixes gets files."""
        if self._offered().suffixes:
            pytest.skip("it reads files, and takes no references")

    def _single_files(self) -> list[Path]:
        if not self._offered().suffixes:
            pytest.skip("it owns no suffix of files")
        if not (files := [file.resolve() for file in self.files()]):
            pytest.skip("no file was named that it reads")
        return files

    def _read(self, file: Path) -> Checkpoint:
        """Return a file's model as the assembly requests it."""
        registry = self.registry()
        unread = Checkpoint(file.name, file.parent, file=file)
        context = BuildContext(str(file), unread, registries={"models": registry})
        return registry.build(self.name, {}, context)

    def _refusal(self, reference: str | Checkpoint) -> str | None:
        """Return why it does not have a model; a packaged model need not say it itself."""
        offered = self._offered()
        if offered.is_by_name:
            return None if reference == self.name else offered.objection(reference)
        return offered.refusal(reference)

    def _here(self) -> list[str]:
        if not (references := list(islice(self.references(), MAX_TRIED))):
            pytest.skip("none of its models is on this disk")
        return references

    def _smallest(self) -> Checkpoint:
        """Return the smallest model on this disk; skip if each is too large to copy."""
        found = [each for each in self._checkpoints() if each.file is None]
        sizes = [sum(num_bytes for num_bytes, _ in _files(each).values()) for each in found]
        if not found or min(sizes) > MAX_COPIED_BYTES:
            pytest.skip("references() has no folder of files up to 64 MiB")
        return found[sizes.index(min(sizes))]

    def _build(
        self,
        reference: str,
        revision: str | None = None,
        registry: Registry[Checkpoint] | None = None,
    ) -> Checkpoint:
        """Return a model's files as the assembly requests them."""
        registry = registry or self.registry()
        context = BuildContext(reference, revision=revision, registries={"models": registry})
        return registry.build(self.name, {}, context)

    def _checkpoints(self) -> Iterator[Checkpoint]:
        yield from map(self._build, self._here())


def _files(checkpoint: Checkpoint) -> Files:
    """Return the names, sizes and times of a model's files."""
    return {
        str(path.relative_to(checkpoint.path)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in checkpoint.path.rglob("*")
        if path.is_file()
    }


def _contents(folder: Path) -> Files:
    """Return the names, sizes and times of the files in a folder."""
    return {
        path.name: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if path.is_file()
    }


def _visible(folder: Path) -> list[Path]:
    """Return the files of a folder that are not hidden, the largest first."""
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    return sorted(files, key=lambda path: (-path.stat().st_size, path))


def _offsets(file: Path) -> list[int]:
    """Return the first, the middle and the last byte of a file."""
    num_bytes = file.stat().st_size
    return sorted({0, num_bytes // 2, num_bytes - 1}) if num_bytes else []


def _flip(file: Path, offset: int) -> None:
    """Change a byte of a file in place, or change it back; size and time stay."""
    facts = file.stat()
    file.chmod(facts.st_mode | stat.S_IWUSR)
    with file.open("r+b") as opened:
        opened.seek(offset)
        (byte,) = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte ^ 1]))
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@contextmanager
def _no_network() -> Iterator[list[object]]:
    """Block connections, and yield the list of attempted addresses."""
    tried: list[object] = []

    def refuse(*asked: object, **_: object) -> Any:
        tried.append(asked)
        raise OSError("there is no network here")

    with (
        mock.patch.object(socket, "getaddrinfo", refuse),
        mock.patch.object(socket.socket, "connect", refuse),
        mock.patch.object(socket.socket, "connect_ex", refuse),
    ):
        yield tried
