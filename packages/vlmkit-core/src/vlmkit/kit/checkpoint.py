"""A model's folder on this disk, and the content of its small JSON files.

Downloads nothing (model sources do) and never reads weights (engines do).
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from vlmkit.errors import CheckpointError
from vlmkit.kit import content
from vlmkit.kit.single_file import projectors_beside

T = TypeVar("T")
FETCH_AGAIN = "fetch it again"
MAX_JSON_BYTES = 64 * 2**20  # a tokenizer.json of a 256k vocabulary is about 35 MB


@dataclass(frozen=True)
class Checkpoint:
    """One model's folder.

    Attributes:
        name: the name of the model; the server lists it under this name.
        path: the folder that holds ``config.json`` and the other files.
        file: the file with the whole model, if it is a single file such as GGUF; None for other
            models. ``path`` is then the folder that its source wrote or found for it.
        projector: the file with the vision tower of a model in a GGUF file, if its source or the
            user selected one of several. None for other models, and for that beside the file.
        revision: the requested revision, if the source has revisions.
        is_preview: whether its weights are not downloaded yet. A safetensors file of a preview ends
            after its header; other weight files are empty. Other large files, such as a vocabulary,
            may be empty, too.
        is_for_another_machine: whether it is planned for a machine with other memory. It is then
            not refused for the memory of this one.
    """

    name: str
    path: Path
    revision: str | None = None
    is_preview: bool = False
    file: Path | None = None
    is_for_another_machine: bool = False
    projector: Path | None = None

    def has(self, pattern: str) -> bool:
        """Return whether any file of the folder matches a glob such as ``*.safetensors``."""
        return any(self.path.glob(pattern))

    def read_json(self, file: str) -> dict[str, Any]:
        """Return a JSON file of the folder as a dictionary; empty if the file is missing.

        Raises:
            CheckpointError: the file is too large, is not JSON or is not an object.
        """
        content = self._read(file, {})
        if not isinstance(content, dict):
            raise CheckpointError(
                f"{file!r} of model {self.name!r} is not a JSON object", hint=FETCH_AGAIN
            )
        return content

    def read_json_list(self, file: str) -> list[Any]:
        """Return a JSON file of the folder as a list; empty if the file is missing.

        Raises:
            CheckpointError: the file is too large, is not JSON or is not an array.
        """
        content = self._read(file, [])
        if not isinstance(content, list):
            raise CheckpointError(
                f"{file!r} of model {self.name!r} is not a JSON array", hint=FETCH_AGAIN
            )
        return content

    def once(self, key: str, find: Callable[[], T]) -> T:
        """Return what a function finds in the files; call it at the first time only.

        Copies of the checkpoint do not know what it found. An error is not kept.

        Args:
            key: what it finds, with the name of the distribution in front.
            find: finds it.
        """
        if key not in self._found:
            self._found[key] = find()
        found: T = self._found[key]
        return found

    def _read(self, file: str, absent: Any) -> Any:
        path = self.path / file
        if not path.is_file():
            return absent
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{file!r} of model {self.name!r} is over {MAX_JSON_BYTES} bytes")
        try:
            return json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{file!r} of model {self.name!r} is not valid JSON", hint=FETCH_AGAIN
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs, which is not what was found here."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _found(self) -> dict[str, Any]:
        return {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``; empty if it is missing."""
        return self.read_json("config.json")

    @cached_property
    def answering(self) -> dict[str, Any]:
        """The config of the part that answers: ``thinker_config`` of a model that speaks, else all.

        A model that speaks has a thinker, which answers, a talker and a voice.
        """
        thinker = self.config.get("thinker_config")
        return thinker if isinstance(thinker, dict) else self.config

    @property
    def model_type(self) -> str:
        """The model family in ``config.json``, such as ``llava``; empty if it has none."""
        return str(self.config.get("model_type", ""))

    @property
    def projectors(self) -> list[Path]:
        """The selected file with a vision tower, or else those beside the single file, sorted."""
        if self.projector is not None:
            return [self.projector]
        return [] if self.file is None else projectors_beside(self.file)

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits that change when the content of any file of the model changes.

        Covers file names, but not file times or hidden files. Reads every file once, and again only
        after it changes; see :mod:`vlmkit.kit.content`.

        Raises:
            CheckpointError: a file cannot be read.
        """
        try:
            digests = content.digests(self.path)
            if self.file is not None and self.file.parent != self.path:
                for file in (self.file, *self.projectors):
                    digests |= content.file_digest(file)
            elif self.projector is not None:
                digests[f"projector {self.projector.name}"] = ""
        except OSError as error:
            raise CheckpointError(
                f"a file of model {self.name!r} cannot be read: {error.strerror}"
            ) from error
        whole = hashlib.sha256()
        for name, digest in digests.items():
            whole.update(f"{name}\0{digest}\n".encode())
        return whole.hexdigest()
