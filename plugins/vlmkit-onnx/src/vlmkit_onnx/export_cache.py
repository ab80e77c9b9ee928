"""Where models that were exported on the way to being served are kept, and making them once.

An export is found again without torch: its name is made of what every installation knows, above
all the content of the checkpoint's files: two fine-tunes may have equal sizes and times. Versions
of torch and transformers are no part of it, since the graph that was checked when it was made
stays what it is; the manifest records them.
"""

import hashlib
import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from vlmkit import content, user_cache
from vlmkit.checkpoint import Checkpoint
from vlmkit.errors import PluginUnavailable
from vlmkit_onnx.manifest import FILE, FORMAT, Precision

OnStage = Callable[[str], None]
Part = Precision | Literal["tower"]
"""What is exported apart: the decoder, in some precision, or the vision tower."""

TOWER: Literal["tower"] = "tower"
VISION = "vision.onnx"
EXPORTER_NEEDS = ("torch", "transformers", "onnxscript", "onnx_ir", "safetensors", "onnxruntime")
INSTALL_HINT = "pip install vlmkit-onnx[export]"
POLL_S = 0.5
SHAPE_CHARS = 16


def cached_export(checkpoint: Checkpoint, precision: Precision, on_stage: OnStage) -> Path:
    """Return the folder of a checkpoint's decoder, exporting it if it was not yet.

    Of several processes that ask at once, one exports and the others wait for it.

    Raises:
        CheckpointError: the checkpoint is broken, or of a family that cannot be exported.
        PluginUnavailable: it would have to be exported, and the exporter is not installed.
    """

    def make(folder: Path) -> None:
        from vlmkit_onnx.export.exporter import export

        export(checkpoint, folder, precision, on_stage, with_tower=False)

    return _made_once(cached_folder(checkpoint, precision), make, on_stage)


def cached_tower(checkpoint: Checkpoint, on_stage: OnStage) -> Path:
    """Return the folder of a checkpoint's vision tower, as :func:`cached_export` its decoder's.

    They are apart because either may run beside the other half of another library, and because one
    tower serves decoders of every precision. Reading a checkpoint once for each costs next to
    nothing: its weights are mapped, not copied.
    """

    def make(folder: Path) -> None:
        from vlmkit_onnx.export.exporter import export_tower

        export_tower(checkpoint, folder, on_stage)

    return _made_once(cached_folder(checkpoint, TOWER), make, on_stage)


def _made_once(folder: Path, make: Callable[[Path], None], on_stage: OnStage) -> Path:
    if is_whole(folder):
        return folder
    refuse_without_exporter()
    with _locked(folder.with_suffix(".lock"), on_stage):
        if not is_whole(folder):
            make(folder)
    return folder


def cached_folder(checkpoint: Checkpoint, part: Part) -> Path:
    """Return where the export of a checkpoint's part is or would be; imports nothing heavy.

    Its name follows the content of the checkpoint's files, which are all read the first time.
    """
    return _cache_root() / f"{_shape(checkpoint, part)}-{checkpoint.fingerprint}"


def finished(checkpoint: Checkpoint, part: Part) -> Path | None:
    """Return where the export of a checkpoint's part is; None where it is yet to be made.

    Reads no weights unless files of equal names and sizes were exported: only then it has to.
    """
    if not any(_cache_root().glob(f"{_shape(checkpoint, part)}-*")):
        return None
    folder = cached_folder(checkpoint, part)
    return folder if is_whole(folder) else None


def _shape(checkpoint: Checkpoint, part: Part) -> str:
    """Return what an export's name begins with: all that shows without reading weights."""
    digest = hashlib.sha256()
    version = importlib.metadata.version("vlmkit-onnx")
    for fact in (part, str(FORMAT), version, *content.sizes(checkpoint.path).items()):
        digest.update(f"{fact}\n".encode())
    for path in _exporter_sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:SHAPE_CHARS]


def is_whole(folder: Path) -> bool:
    """Tell whether a folder holds an export; one gets its name when it is finished."""
    return (folder / FILE).is_file() or (folder / VISION).is_file()


def missing_packages() -> list[str]:
    """Return what the exporter needs and is not installed; imports nothing."""
    return [name for name in EXPORTER_NEEDS if importlib.util.find_spec(name) is None]


def refuse_without_exporter() -> None:
    """Say what to install.

    Raises:
        PluginUnavailable: the exporter's packages are not all there.
    """
    if missing := missing_packages():
        raise PluginUnavailable(
            f"to export a model to ONNX, {', '.join(missing)} must be installed", hint=INSTALL_HINT
        )


def _cache_root() -> Path:
    return user_cache.folder() / "onnx"


def _exporter_sources() -> list[Path]:
    """Return the exporter's own files: what it makes changes when they do."""
    return sorted((Path(__file__).parent / "export").rglob("*.py"))


@contextmanager
def _locked(path: Path, on_stage: OnStage) -> Iterator[None]:
    """Hold a lock file, which the operating system lets go of when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if not _try_lock(file):
            on_stage("waiting for another export")
            while not _try_lock(file):
                time.sleep(POLL_S)
        yield


def _try_lock(file: BinaryIO) -> bool:
    """Lock an open file if nobody has; closing it lets go."""
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
