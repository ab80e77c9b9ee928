"""Digests of the content of a folder's files, cached between runs.

Files with equal names, sizes and times may differ, so all their gigabytes are read once. Digests of
large files are then cached in the user's cache folder, with the file's inode, size and times. The
change time is safe because programs cannot set it. A missing, broken or read-only cache costs only
time. The cache is as trusted as the cached files that its digests lead to: both need write access
to the same folder.
"""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from vlmkit.kit import user_cache

log = logging.getLogger(__name__)

PIECE_BYTES = 2**22  # of a file, digested by one thread
MAX_THREADS = 8
LEAST_BYTES = 2**20  # smaller files are digested faster than they are looked up
SETTLED_NS = 3 * 10**9  # file system clocks are coarse: a second change may keep the time


class _Facts(msgspec.Struct, frozen=True, array_like=True):
    """File attributes that change with the content. Windows has no change time, hence two times."""

    inode: int
    num_bytes: int
    modified_ns: int
    changed_ns: int


class _Known(msgspec.Struct, frozen=True, array_like=True):
    facts: _Facts
    digest: str


Memory = Mapping[str, _Known]


def digests(folder: Path) -> dict[str, str]:
    """Return 64 hex digits for each file, by its path in the folder, without hidden files.

    Raises:
        OSError: a file cannot be read.
    """
    return _digests(folder, _files(folder))


def file_digest(file: Path) -> dict[str, str]:
    """Return the same for one file, whatever else is in its folder.

    Raises:
        OSError: the file cannot be read.
    """
    return _digests(file, [(file.name, file)])


def _digests(place: Path, files: Iterable[tuple[str, Path]]) -> dict[str, str]:
    """Return the digest of each file; digests are cached by the place."""
    known = _recall(place)
    found, news = {}, {}
    for name, path in files:
        facts = _facts(path)
        if name in known and known[name].facts == facts:
            found[name] = known[name].digest
            continue
        try:
            found[name] = digest(path)
        except PermissionError:  # the process that loads the model cannot read it either
            found[name] = ""
            continue
        is_settled = facts.changed_ns < time.time_ns() - SETTLED_NS
        if facts.num_bytes >= LEAST_BYTES and is_settled:
            news[name] = _Known(facts, found[name])
    if news:
        _remember(place, {name: known[name] for name in known if name in found} | news)
    return found


def sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of the same files in bytes, without reading them."""
    return {name: path.stat().st_size for name, path in _files(folder)}


def changes(folder: Path) -> str | None:
    """Return 64 hex digits that change with the attributes of the same files; reads none.

    Returns None if a file changed within the last 3 seconds, because a second change may keep the
    same time.

    Raises:
        OSError: a file was removed meanwhile.
    """
    facts = {name: _facts(path) for name, path in _files(folder)}
    latest = max((fact.changed_ns for fact in facts.values()), default=0)
    if latest >= time.time_ns() - SETTLED_NS:
        return None
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def digest(path: Path) -> str:
    """Return 64 hex digits of a file's content; reads it with several threads."""
    num_bytes = path.stat().st_size
    whole = hashlib.sha256(f"{num_bytes}\0".encode())
    num_threads = min(MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads, "vlmkit-digest") as pool:
        for piece in pool.map(lambda start: _piece(path, start), range(0, num_bytes, PIECE_BYTES)):
            whole.update(piece)
    return whole.hexdigest()


def _piece(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(PIECE_BYTES)).digest()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files that may belong to a model; skips hidden files of downloads and Git."""
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            yield relative.as_posix().encode(errors="backslashreplace").decode(), path


def _facts(path: Path) -> _Facts:
    stat = path.stat()
    return _Facts(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def _cache_file(folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return user_cache.folder() / "digests" / f"{name}.json"


def _recall(folder: Path) -> Memory:
    try:
        return msgspec.json.decode(_cache_file(folder).read_bytes(), type=dict[str, _Known])
    except (OSError, RuntimeError, ValueError, msgspec.MsgspecError):  # missing, no home, invalid
        return {}


def _remember(folder: Path, known: Memory) -> None:
    try:
        replace(_cache_file(folder), msgspec.json.encode(known))
    except (OSError, RuntimeError) as error:
        log.info("cannot cache the digests of %s: %s", folder, error)


def replace(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old content or the new content.

    Raises:
        OSError: the file cannot be written; the old file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
