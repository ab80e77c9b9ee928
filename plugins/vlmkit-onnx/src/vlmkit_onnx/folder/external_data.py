"""Checks that a graph reads external files of its own model only.

A graph may name any file, and a folder may contain links to any file. ONNX Runtime has its own
rule; this one is never less strict.
"""

import os
from pathlib import Path

from vlmkit.errors import CheckpointError
from vlmkit_onnx.folder.graph_header import GraphHeader, read_header
from vlmkit_onnx.folder.graph_messages import ExternalTensor


def check(file: Path, root: Path, header: GraphHeader | None = None) -> None:
    """Check that a graph and the files that it reads are in the model's folder, and complete.

    Links are followed. They may lead out of the folder only from the ``snapshots`` of a Hugging
    Face cache to the ``blobs`` of the same repository.

    Args:
        file: the graph.
        root: the model's folder.
        header: the graph's header, if it was read already.

    Raises:
        CheckpointError: the graph is outside the folder or broken; or a file that it names is
            outside the folder, absent or too short.
    """
    header = header or read_header(file)
    allowed = _allowed_folders(root)
    _refuse_outside(file, allowed, f"{file.name!r}")
    sizes: dict[str, int] = {}
    for tensor in header.external:
        if tensor.location not in sizes:
            sizes[tensor.location] = _size(file, tensor, allowed)
        if tensor.offset + tensor.num_bytes > sizes[tensor.location]:
            raise CheckpointError(
                f"{file.name!r} reads {tensor.offset + tensor.num_bytes} bytes of "
                f"{tensor.location!r}, which has {sizes[tensor.location]}",
                hint="fetch or export the model again",
            )


def _size(file: Path, tensor: ExternalTensor, allowed: list[Path]) -> int:
    """Return the bytes of the file that holds a tensor."""
    location = tensor.location
    parts = location.split("/")
    # A colon or an asterisk is part of some file names; "*/" begins an address in memory.
    is_plain = location.isprintable() and "\\" not in location and not location.startswith("*/")
    if not is_plain or any(part in ("", ".", "..") for part in parts):
        raise CheckpointError(
            f"{file.name!r} reads {location!r}, which is not a plain path inside its folder"
        )
    path = file.parent / location
    what = f"{location!r}, which {file.name!r} reads,"
    # ONNX Runtime searches beside the graph, or beside the target of the graph's link.
    beside = [file.parent.resolve(), file.resolve().parent]
    if not _is_file(path):
        raise CheckpointError(f"{what} is missing", hint="fetch or export the model again")
    _refuse_outside(path, allowed, what)
    _refuse_outside(path, beside, what)
    return path.stat().st_size


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is invalid for files
        return False


def _refuse_outside(path: Path, folders: list[Path], what: str) -> None:
    real = path.resolve()
    if not any(real.is_relative_to(folder) for folder in folders):
        raise CheckpointError(
            f"{what} leads to a file outside the model's folder",
            hint="copy the file into the folder in place of the link",
        )


def _allowed_folders(root: Path) -> list[Path]:
    """Return the model's folder, and the blobs of its repository if it is in a hub's cache."""
    absolute = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would follow links
    folders = [root.resolve()]
    for folder in (absolute, *absolute.parents):
        if folder.parent.name == "snapshots":
            repository = folder.parent.parent
            blobs = repository / "blobs"
            if blobs.is_dir() and blobs.resolve() == repository.resolve() / "blobs":
                folders.append(blobs.resolve())
            break
    return folders
