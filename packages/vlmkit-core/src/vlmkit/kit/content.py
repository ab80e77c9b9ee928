"""Digests of a folder's files by what is in them, each computed once.

Equal names, sizes and times do not make two files equal, so gigabytes are read to tell them apart.
Digests of large files are stored in the user's cache folder, with the size, inode and change time
of the file. The system sets the change time, and no program can. A store that is absent, damaged or
read-only costs time and nothing else. An attacker who could write a wrong digest into it could also
write the cached files that digests lead to.
"""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from vlmkit.kit import user_cache

log = logging.getLogger(__name__)

PIECE_BYTES = 2**22  # of a file, digested by one thread
MAX_THREADS = 8
LEAST_BYTES = 2**20  # smaller files are digested anew sooner than they are looked up
SETTLED_NS = 3 * 10**9  # clocks of file systems are coarse: a second change may leave no trace


class _Facts(msgspec.Struct, frozen=True, array_like=True):
    """What changes when a file does. Windows has no time of the last change, hence two times."""

    inode: int
    num_bytes: int
    modified_ns: int
    changed_ns: int


class _Known(msgspec.Struct, frozen=True, array_like=True):
    facts: _Facts
    digest: str


Memory = Mapping[str, _Known]


def digests(folder: Path) -> dict[str, str]:
    """Return 64 hex digits for each file, by its path in the folder; hidden ones are left out.

    Raises:
        OSError: a file cannot be read.
    """
    known = _recall(folder)
    found, news = {}, {}
    for name, path in _files(folder):
        facts = _facts(path)
        if name in known and known[name].facts == facts:
            found[name] = known[name].digest
            continue
        try:
            found[name] = digest(path)
        except PermissionError:  # who loads the model cannot read it either
            found[name] = ""
            continue
        is_settled = facts.changed_ns < time.time_ns() - SETTLED_NS
        if facts.num_bytes >= LEAST_BYTES and is_settled:
            news[name] = _Known(facts, found[name])
    if news:
        _remember(folder, {name: known[name] for name in known if name in found} | news)
    return found


def sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of the same files, without reading any."""
    return {name: path.stat().st_size for name, path in _files(folder)}


def changes(folder: Path) -> str | None:
    """Return 64 hex digits that change when the system sees one of the same files change.

    None is read. Returns None where one changed just now: a second change may leave no trace.

    Raises:
        OSError: a file went away meanwhile.
    """
    facts = {name: _facts(path) for name, path in _files(folder)}
    latest = max((fact.changed_ns for fact in facts.values()), default=0)
    if latest >= time.time_ns() - SETTLED_NS:
        return None
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def digest(path: Path) -> str:
    """Return 64 hex digits of a file's content, read by several threads at once."""
    num_bytes = path.stat().st_size
    whole = hashlib.sha256(f"{num_bytes}\0".encode())
    num_threads = min(MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads, "vlmkit-digest") as pool:
        for own in pool.map(lambda start: _piece(path, start), range(0, num_bytes, PIECE_BYTES)):
            whole.update(own)
    return whole.hexdigest()


def _piece(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(PIECE_BYTES)).digest()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield what may belong to a model; not a download's or a repository's own notes."""
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            yield relative.as_posix().encode(errors="backslashreplace").decode(), path


def _facts(path: Path) -> _Facts:
    stat = path.stat()
    return _Facts(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def _place(folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return user_cache.folder() / "digests" / f"{name}.json"


def _recall(folder: Path) -> Memory:
    try:
        return msgspec.json.decode(_place(folder).read_bytes(), type=dict[str, _Known])
    except (OSError, RuntimeError, ValueError, msgspec.MsgspecError):  # none, no home, or not ours
        return {}


def _remember(folder: Path, known: Memory) -> None:
    try:
        replace(_place(folder), msgspec.json.encode(known))
    except (OSError, RuntimeError) as error:
        log.info("digests of %s are not remembered: %s", folder, error)


def replace(place: Path, data: bytes) -> None:
    """Write a file as a whole: who reads it sees the old one or the new one.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(place)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
