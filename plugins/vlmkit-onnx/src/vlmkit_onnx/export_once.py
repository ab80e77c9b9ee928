"""Exports a model when it is first served, once for all processes.

``export_cache`` names the folder, and the exporter writes it.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.folder.export_cache import (
    TOWERS,
    Part,
    cached_folder,
    finished,
    is_whole,
    refuse_without_exporter,
)
from vlmkit_onnx.folder.manifest import Precision, Stored, TowerPrecision

OnStage = Callable[[str], None]
POLL_S = 0.5


def cached_export(checkpoint: Checkpoint, precision: Precision | Stored, on_stage: OnStage) -> Path:
    """Return the folder of a checkpoint's decoder; export it if the folder is absent.

    If several processes call this at once, one exports and the others wait.

    Raises:
        CheckpointError: the checkpoint is broken, or of a family that cannot be exported.
        PluginUnavailable: an export is needed, and the exporter is not installed.
    """

    def make(folder: Path) -> None:
        from vlmkit_onnx.export.exporter import export

        export(checkpoint, folder, precision, on_stage, with_tower=False)

    return _exported_once(checkpoint, precision, make, on_stage)


def cached_tower(
    checkpoint: Checkpoint, precision: TowerPrecision | None, on_stage: OnStage
) -> Path:
    """Return the folder of a checkpoint's vision tower; see :func:`cached_export`.

    Decoder and tower are separate exports. Either may run beside the other half of another library,
    and one tower serves decoders of every precision. Reading a checkpoint twice costs little,
    because its weights are mapped.
    """

    def make(folder: Path) -> None:
        from vlmkit_onnx.export.exporter import export_tower

        export_tower(checkpoint, folder, precision, on_stage)

    return _exported_once(checkpoint, TOWERS[precision], make, on_stage)


def _exported_once(
    checkpoint: Checkpoint, part: Part, make: Callable[[Path], None], on_stage: OnStage
) -> Path:
    if existing := finished(checkpoint, part):
        return existing
    refuse_without_exporter()
    folder = cached_folder(checkpoint, part)
    with _locked(folder.with_suffix(".lock"), on_stage):
        if not is_whole(folder):
            make(folder)
    return folder


@contextmanager
def _locked(path: Path, on_stage: OnStage) -> Iterator[None]:
    """Hold a lock file, which the operating system unlocks if the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if not _try_lock(file):
            on_stage("waiting for another export")
            while not _try_lock(file):
                time.sleep(POLL_S)
        yield


def _try_lock(file: BinaryIO) -> bool:
    """Lock an open file unless it is locked; closing it unlocks it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
