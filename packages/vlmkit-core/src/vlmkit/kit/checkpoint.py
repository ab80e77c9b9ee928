"""A model's files on this disk: where they are and what their small JSON files say.

Does not download anything (a model source does) and never reads weights (an engine does).
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit import content

FETCH_AGAIN = "fetch it again"
MAX_JSON_BYTES = 64 * 2**20  # a tokenizer.json of a 256k vocabulary is about 35 MB


@dataclass(frozen=True)
class Checkpoint:
    """One model's folder.

    Attributes:
        name: how users call this model; the server lists it under this name.
        path: the folder that holds ``config.json`` and its companions.
        revision: the revision that was asked for, if the source knows revisions.
        is_preview: whether its weights are yet to be fetched. Files of weights are there by their
            names: a safetensors file ends after its header, any other is empty. Other large files,
            such as a vocabulary, may be empty too.
    """

    name: str
    path: Path
    revision: str | None = None
    is_preview: bool = False

    def has(self, pattern: str) -> bool:
        """Tell whether any file of the folder matches a glob such as ``*.safetensors``."""
        return any(self.path.glob(pattern))

    def read_json(self, file: str) -> dict[str, Any]:
        """Return a JSON file of the folder as a dictionary; an absent file is an empty one.

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
        """Return a JSON file of the folder as a list; an absent file is an empty one.

        Raises:
            CheckpointError: the file is too large, is not JSON or is not an array.
        """
        content = self._read(file, [])
        if not isinstance(content, list):
            raise CheckpointError(
                f"{file!r} of model {self.name!r} is not a JSON array", hint=FETCH_AGAIN
            )
        return content

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

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``; empty where there is none."""
        return self.read_json("config.json")

    @cached_property
    def answering(self) -> dict[str, Any]:
        """What ``config.json`` says of the part that answers: all, unless the model speaks as well.

        A model that speaks has a thinker, which answers, a talker and a voice.
        """
        thinker = self.config.get("thinker_config")
        return thinker if isinstance(thinker, dict) else self.config

    @property
    def model_type(self) -> str:
        """The family that ``config.json`` names, such as ``llava``; empty if it names none."""
        return str(self.config.get("model_type", ""))

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits that change when the content of any file of the folder changes.

        Names of files count, their times do not, and hidden files are left out. Reads every file
        once; later it is enough that none has changed, see :mod:`vlmkit.kit.content`.

        Raises:
            CheckpointError: a file cannot be read.
        """
        try:
            digests = content.digests(self.path)
        except OSError as error:
            raise CheckpointError(
                f"a file of model {self.name!r} cannot be read: {error.strerror}"
            ) from error
        whole = hashlib.sha256()
        for name, digest in digests.items():
            whole.update(f"{name}\0{digest}\n".encode())
        return whole.hexdigest()
