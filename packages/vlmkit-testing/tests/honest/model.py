"""A source of models in one folder, which has two of them, and two revisions of each."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext, Registry

PREFIX = "team/"
NAMES = ("small", "tiny")
REVISIONS = ("first", "second")


class Store:
    """Offers the models of a folder."""

    description: ClassVar[str] = "models of a team"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def vlmkit_register_models(self, registry: Registry[Any]) -> None:
        """Offer them."""
        registry.add(
            "store",
            self.build,
            cannot_serve=self.cannot_serve,
            list_models=self.list_models,
            previews=self.previews,
            description=self.description,
        )

    def cannot_serve(self, reference: str) -> str | None:
        """Leave to others what does not begin as ours do."""
        is_ours = reference.startswith(PREFIX) and reference.count("/") == 1
        return None if is_ours else f"it has only models named {PREFIX}NAME"

    def list_models(self) -> Iterable[str]:
        """Return both."""
        return [PREFIX + name for name in NAMES]

    def previews(self, context: BuildContext) -> Iterator[Checkpoint]:
        """Yield nothing: all models are here."""
        yield from ()

    def build(self, context: BuildContext) -> Checkpoint:
        """Return a model's files."""
        name = context.reference.removeprefix(PREFIX)
        if name not in NAMES:
            raise self.absent(context.reference)
        if context.revision not in (None, *REVISIONS):
            raise CheckpointError(f"model {context.reference!r} has no such revision")
        path = self.folder / name / (context.revision or REVISIONS[-1])
        return Checkpoint(context.reference, path, context.revision)

    def absent(self, reference: str) -> Exception:
        """Return why there is no such model."""
        return CheckpointError(
            f"model {reference!r} is not in the store", hint=f"there are: {', '.join(NAMES)}"
        )


class Packaged(Store):
    """Offers one of them alone, as a distribution that carries it does."""

    def vlmkit_register_models(self, registry: Registry[Any]) -> None:
        """Offer it."""
        registry.add_packaged("store", self.folder / "tiny/first", description=self.description)


def fill(folder: Path) -> None:
    """Write the store's files."""
    for name in NAMES:
        for revision in REVISIONS:
            path = folder / name / revision
            path.mkdir(parents=True)
            (path / "config.json").write_text(json.dumps({"model_type": name, "is": revision}))
            (path / "special.json").write_text("[1, 2]")
