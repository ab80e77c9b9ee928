"""Models in a single file, such as GGUF: references to one file of a repository.

``owner/name:Q4_K_M`` names the file of the repository ``owner/name`` whose name ends with the tag
``Q4_K_M`` before its suffix, such as ``tiny-Q4_K_M.gguf``. A whole file name is a tag, too. A GGUF
file may be in several pieces, such as ``tiny-00001-of-00003.gguf``; the first one stands for all.
This module looks at names alone and reads no file.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from vlmkit.errors import CheckpointError

SUFFIX = re.compile(r"(\.[a-z0-9]{1,16}){1,2}")
_TAGGED = re.compile(r"([^/:\\]+/[^/:\\]+):([A-Za-z0-9][A-Za-z0-9._-]{0,199})")
_PROJECTOR = re.compile(r"(^|[._-])mmproj([._-]|$)", re.IGNORECASE)
_PIECE = re.compile(r"-\d{5}-of-(\d{5})$")
MAX_PIECES = 256
MAX_LISTED = 12
GGUF = (".gguf",)
PRECISIONS = ("BF16", "F16", "F32")
"""Precisions of vision towers, the preferred ones first."""


def split_tag(reference: str) -> tuple[str, str]:
    """Return the repository and the tag of a reference; the tag is empty if there is none."""
    found = _TAGGED.fullmatch(reference)
    return (found[1], found[2]) if found else (reference, "")


def suffix_of(name: str, suffixes: Iterable[str]) -> str:
    """Return the longest of some suffixes that a file name ends with; empty if none fits."""
    fitting = (suffix for suffix in suffixes if name.lower().endswith(suffix))
    return max(fitting, key=len, default="")


def tag_of(name: str, suffixes: Iterable[str]) -> str:
    """Return the shortest tag of a file name, such as ``Q4_K_M``: the part after its last dash."""
    stem = name[: len(name) - len(suffix_of(name, suffixes))]
    return _PIECE.sub("", stem).rpartition("-")[2]


def pieces_of(name: str) -> list[str]:
    """Return the names of all pieces of a GGUF file, in order; one name if it is whole."""
    suffix = name[len(name) - len(suffix_of(name, GGUF)) :]
    found = _PIECE.search(stem := name.removesuffix(suffix)) if suffix else None
    if found is None or not 1 <= (num := int(found[1])) <= MAX_PIECES:
        return [name]
    base = stem[: found.start()]
    return [f"{base}-{number:05}-of-{found[1]}{suffix}" for number in range(1, num + 1)]


def is_further_piece(name: str) -> bool:
    """Return whether a file is a piece of another one, and not its first."""
    return pieces_of(name)[0] != name


def is_projector(name: str) -> bool:
    """Return whether a file has the vision tower of a model in another file, by its name.

    llama.cpp names such files ``mmproj``.
    """
    return name.lower().endswith(".gguf") and _PROJECTOR.search(name) is not None


def select_projector(file: str, names: Iterable[str], wanted: str | None = None) -> str | None:
    """Return the file with the vision tower of a model in a GGUF file; None if there is none.

    Of several precisions, the one that is nearest to what models are published in is selected.

    Args:
        file: the name of the file with the model.
        names: the names of all files of its repository.
        wanted: the one that the user named.

    Raises:
        CheckpointError: there is no file of the name that the user gave.
    """
    if not suffix_of(file, GGUF):
        return None
    names = list(names)
    found = sorted(name for name in names if "/" not in name and is_projector(name))
    if wanted is not None:
        return named_projector(file, names, wanted)
    order = [name for precision in PRECISIONS for name in found if _fits(name, precision, GGUF)]
    return next(iter([*order, *found]), None)


def named_projector(file: str, names: Iterable[str], wanted: str) -> str:
    """Return the file with a vision tower that a user named; it must be beside the model.

    Args:
        file: the name of the file with the model.
        names: the names of all files beside it.
        wanted: what the user named.

    Raises:
        CheckpointError: it is in another folder, is not there, is the model, or is no GGUF file
            under a name of its own.
    """
    if "/" in wanted or "\\" in wanted:
        raise CheckpointError(
            f"the projector {wanted!r} is not in the folder of {file!r}",
            hint="put it beside the model, and set projector to its name alone",
        )
    names = set(names)
    if problem := _not_a_projector(file, names, wanted):
        listed = sorted(n for n in names if "/" not in n and n[0] != "." and is_projector(n))
        raise CheckpointError(
            f"the projector {wanted!r} {problem}",
            hint=f"there are: {', '.join(listed[:MAX_LISTED])}"
            if listed
            else "put the model's 'mmproj' file there",
        )
    return wanted


def _not_a_projector(file: str, names: set[str], wanted: str) -> str:
    """Return why a file cannot have the vision tower of a model, by its name; empty if it can."""
    if wanted in pieces_of(file):
        return "is the model"
    if wanted not in names:
        return f"is not beside {file!r}"
    if not suffix_of(wanted, GGUF):
        return "is no GGUF file"
    if is_further_piece(wanted):
        return "is a part of another file"
    return "is a hidden file" if wanted.startswith(".") else ""


def gguf_files(folder: Path) -> list[Path]:
    """Return what a folder has under names of GGUF files, sorted; skips hidden names."""
    found = (path for path in folder.glob("*") if suffix_of(path.name, GGUF))
    return sorted(path for path in found if not path.name.startswith("."))


def projectors_beside(file: Path) -> list[Path]:
    """Return the files with vision towers in the folder of another file, sorted."""
    found = (path for path in gguf_files(file.parent) if is_projector(path.name))
    return [path for path in found if path != file]


def select_file(reference: str, names: Iterable[str], suffixes: Iterable[str]) -> str:
    """Return the name of the file that a reference with a tag selects; of pieces, the first.

    Files in folders are not considered, and those with vision towers are not.

    Args:
        reference: the reference, such as ``owner/name:Q4_K_M``.
        names: the names of all files of the repository.
        suffixes: the suffixes that may be selected.

    Raises:
        CheckpointError: no file fits the tag, or several do, or one lacks a piece.
    """
    repository, tag = split_tag(reference)
    suffixes = list(suffixes)
    files = sorted(
        name
        for name in names
        if "/" not in name and suffix_of(name, suffixes) and not is_projector(name)
    )
    found = [name for name in files if _fits(name, tag, suffixes)]
    if len(whole := {pieces_of(name)[0] for name in found}) == 1:
        file = whole.pop()
        _refuse_absent_pieces(reference, file, files)
        return file
    if not files:
        raise CheckpointError(
            f"model {repository!r} has no file that ends with {' or '.join(sorted(suffixes))}",
            hint=f"for its other files, name {repository}",
        )
    shown = ", ".join(sorted({pieces_of(name)[0] for name in found or files})[:MAX_LISTED])
    problem = f"fits {len(found)} files" if found else "fits no file"
    raise CheckpointError(
        f"model {reference!r} {problem} of the repository", hint=f"it has {shown}"
    )


def _refuse_absent_pieces(reference: str, file: str, files: Iterable[str]) -> None:
    """Require that a repository has each piece of a file.

    Raises:
        CheckpointError: it lacks one.
    """
    pieces = pieces_of(file)
    if absent := sorted(set(pieces) - set(files)):
        raise CheckpointError(
            f"model {reference!r} is in {len(pieces)} pieces, and the repository lacks "
            f"{absent[0]!r}",
            hint="name another file of it",
        )


def _fits(name: str, tag: str, suffixes: Iterable[str]) -> bool:
    stem = _PIECE.sub("", name[: len(name) - len(suffix_of(name, suffixes))]).lower()
    wanted = tag.lower()
    return (
        wanted in (name.lower(), stem) or re.search(rf"[._-]{re.escape(wanted)}$", stem) is not None
    )
