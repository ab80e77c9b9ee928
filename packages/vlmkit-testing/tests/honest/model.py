"""A model source with a folder of two models, each in two revisions."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.derived_files import derived_folder
from vlmkit.plugins.registry import BuildContext, Registry

PREFIX = "team/"
NAMES = ("small", "tiny")
SUFFIX, MARK = ".single", b"SINGLE"
WEIGHTS_BYTES, MAX_CONFIG_BYTES = 4096, 2**20
REVISIONS = ("first", "second")


class Store:
    """Provides the models of a folder."""

    description: ClassVar[str] = "models of a team"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def vlmkit_register_models(self, registry: Registry[Any]) -> None:
        """Register them."""
        registry.add(
            "store",
            self.build,
            cannot_serve=self.cannot_serve,
            list_models=self.list_models,
            previews=self.previews,
            description=self.description,
        )

    def cannot_serve(self, reference: str) -> str | None:
        """Refuse references without our prefix."""
        is_ours = reference.startswith(PREFIX) and reference.count("/") == 1
        return None if is_ours else f"it has only models named {PREFIX}NAME"

    def list_models(self) -> Iterable[str]:
        """Return all models."""
        return [PREFIX + name for name in self.names()]

    def names(self) -> list[str]:
        """Return the names of all models that are in the folder now."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{REVISIONS[0]}"))

    def previews(self, context: BuildContext) -> Iterator[Checkpoint]:
        """Yield nothing, because all models are on this disk."""
        yield from ()

    def build(self, context: BuildContext) -> Checkpoint:
        """Return the files of a model."""
        name = context.reference.removeprefix(PREFIX)
        if name not in self.names():
            raise self.absent(context.reference)
        if context.revision not in (None, *REVISIONS):
            raise CheckpointError(f"model {context.reference!r} has no such revision")
        path = self.folder / name / (context.revision or REVISIONS[-1])
        return Checkpoint(context.reference, path, context.revision)

    def absent(self, reference: str) -> Exception:
        """Return the error of a missing model."""
        return CheckpointError(
            f"model {reference!r} is not in the store", hint=f"there are: {', '.join(self.names())}"
        )


class Packaged(Store):
    """Provides a single model, like a distribution that contains it."""

    def vlmkit_register_models(self, registry: Registry[Any]) -> None:
        """Register it."""
        registry.add_packaged("store", self.folder / "tiny/first", description=self.description)


class Reader:
    """Reads models in single files: a mark, the length of a config, the config, and weights."""

    description: ClassVar[str] = "models in single files"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def vlmkit_register_models(self, registry: Registry[Any]) -> None:
        """Register it."""
        registry.add("store", self.build, suffixes=(SUFFIX,), description=self.description)

    def build(self, context: BuildContext) -> Checkpoint:
        """Return the model in a file."""
        file = context.files.file
        assert file is not None
        return replace(context.files, path=self.derived(file, self.config(file)))

    def config(self, file: Path) -> bytes:
        """Return the config in a file."""
        with file.open("rb") as opened:
            head = opened.read(len(MARK) + 8)
            num_bytes = int.from_bytes(head[len(MARK) :], "little")
            config = opened.read(min(num_bytes, MAX_CONFIG_BYTES))
            num_left = file.stat().st_size - opened.tell()
        if not head.startswith(MARK) or len(config) != num_bytes or num_left != WEIGHTS_BYTES:
            raise self.broken(file)
        return config

    def broken(self, file: Path) -> Exception:
        """Return the error of a broken file."""
        return CheckpointError(f"{file.name!r} is broken", hint="fetch it again")

    def derived(self, file: Path, config: bytes) -> Path:
        """Return the folder with the config."""
        return derived_folder(file, {"config.json": config})


def fill_single(folder: Path) -> list[Path]:
    """Write two models in single files."""
    made = []
    for name in NAMES:
        config = json.dumps({"model_type": name}).encode()
        made.append(folder / f"{name}{SUFFIX}")
        made[-1].write_bytes(
            MARK + len(config).to_bytes(8, "little") + config + bytes(WEIGHTS_BYTES)
        )
    return made


def fill(folder: Path, names: Iterable[str] = NAMES) -> None:
    """Write the files of some models of the store."""
    for name in names:
        for revision in REVISIONS:
            path = folder / name / revision
            path.mkdir(parents=True)
            (path / "config.json").write_text(json.dumps({"model_type": name, "is": revision}))
            (path / "special.json").write_text("[1, 2]")
