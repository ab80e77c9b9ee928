"""Finds installed plugins before they are loaded, including those whose metadata is broken."""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from vlmkit.errors import PluginError
from vlmkit.kit.install_command import CORE
from vlmkit.kit.one_line import named, one_line
from vlmkit.plugins import hookspecs
from vlmkit.plugins.local import load_local, local_digest
from vlmkit.plugins.names import canonical

MOST_CHARS = 100
"""Maximum length of names and versions, because metadata is untrusted."""

RESEMBLING = ("vlmkit", "vlmkits", "vlmkitplugin", "vlmkitplugins")
"""Letters of groups of entry points that authors write by mistake."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin before it is loaded.

    Attributes:
        name: the name of the entry point, or the file's stem.
        source: the distribution, or the path of a local file or folder.
        version: the version of the distribution; empty if unknown.
        entry: the object to load, or the error that prevents that.
        remarks: problems of its installation.
    """

    name: str
    source: str
    version: str
    entry: importlib.metadata.EntryPoint | Path | ModuleType | PluginError
    remarks: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """All names of the plugin for VLMKIT_BLOCK."""
        return {canonical(self.name), canonical(self.source)}

    def load(self) -> Any:
        """Import the plugin, and return the object with its hooks."""
        if isinstance(self.entry, PluginError):
            raise self.entry
        if isinstance(self.entry, ModuleType):
            return self.entry
        if isinstance(self.entry, Path):
            return load_local(self.entry)
        if not self.entry.pattern.match(self.entry.value):
            raise PluginError(
                f"the entry point says {one_line(self.entry.value)!r}, which names no module",
                hint="an entry point of the group vlmkit says module, or module:object",
            )
        return self.entry.load()

    def digest(self) -> str:
        """Return the hash of the installed files; empty if unknown."""
        try:
            if isinstance(self.entry, Path):
                return local_digest(self.entry)
            if isinstance(self.entry, ModuleType):
                return _record_digest(importlib.metadata.distribution(CORE))
            dist = getattr(self.entry, "dist", None)
            return "" if dist is None else _record_digest(dist)
        except (OSError, ValueError, importlib.metadata.PackageNotFoundError):
            return ""


def installed(entries: Iterable[importlib.metadata.EntryPoint] | None = None) -> list[Candidate]:
    """Return a candidate for each entry point, by default for all that are installed."""
    found = list(_installed()) if entries is None else list(map(_from_entry, entries))
    return sorted(found, key=lambda candidate: (candidate.source, candidate.name))


def _installed() -> Iterator[Candidate]:
    try:
        every: Any = importlib.metadata.entry_points()  # of two types, by the version of Python
        yield from _plugins_among(every)
    except Exception:  # noqa: BLE001 - broken files of one distribution break this for all
        yield from _one_by_one()


def _one_by_one() -> Iterator[Candidate]:
    """Read each distribution separately, the first of each name, as Python does."""
    seen = set()
    for dist in importlib.metadata.distributions():
        name = _name_of(dist)
        if canonical(name) in seen:
            continue
        seen.add(canonical(name))
        try:
            found = list(_plugins_among(dist.entry_points))
        except Exception as error:  # noqa: BLE001 - as above
            if _has_plugins(dist):
                broken = PluginError(f"its entry points cannot be read: {named(error)}")
                yield Candidate(name, name, "", broken)
            continue
        yield from found


def _plugins_among(entries: importlib.metadata.EntryPoints) -> Iterator[Candidate]:
    """Yield the plugins, and those whose group has a name that only resembles the right one."""
    yield from map(_from_entry, entries.select(group=hookspecs.PROJECT))
    for group in entries.groups - {hookspecs.PROJECT}:
        if re.sub("[^a-z]", "", group.lower()) in RESEMBLING:
            for candidate in map(_from_entry, entries.select(group=group)):
                yield dataclasses.replace(candidate, entry=_in_wrong_group(group))


def _in_wrong_group(group: str) -> PluginError:
    name = one_line(group, MOST_CHARS)
    return PluginError(
        f"its entry point is in the group {name!r}, which vlmkit does not read",
        hint="its pyproject.toml must say [project.entry-points.vlmkit]",
    )


def _from_entry(entry: importlib.metadata.EntryPoint) -> Candidate:
    name = one_line(entry.name, MOST_CHARS)
    if entry.dist is None:
        return Candidate(name, name, "", entry)
    remarks, stated = [], {"Name": "", "Version": ""}
    try:
        metadata: Any = entry.dist.metadata
        # A broken installation states neither, and the properties of its distribution raise.
        stated = {key: one_line(metadata.get(key) or "", MOST_CHARS) for key in stated}
    except Exception as error:  # noqa: BLE001 - the file may hold anything
        remarks.append(f"has metadata that cannot be read: {named(error)}")
    else:
        remarks += [f"does not say its {key.lower()}" for key in stated if not stated[key]]
    source = stated["Name"] or _folder_name(entry.dist) or name
    return Candidate(name, source, stated["Version"], entry, tuple(remarks))


def _name_of(dist: importlib.metadata.Distribution) -> str:
    with contextlib.suppress(Exception):
        if name := dist.metadata.get("Name"):  # type: ignore[attr-defined]
            return one_line(str(name), MOST_CHARS)
    return _folder_name(dist) or "unknown"


def _folder_name(dist: importlib.metadata.Distribution) -> str:
    """Return the name of a distribution from the folder of its metadata."""
    folder = Path(str(getattr(dist, "_path", "")))
    is_one = folder.suffix in (".dist-info", ".egg-info")
    return one_line(folder.name.partition("-")[0], MOST_CHARS) if is_one else ""


def _has_plugins(dist: importlib.metadata.Distribution) -> bool:
    """Return whether unreadable entry points seem to include plugins of vlmkit."""
    folder = getattr(dist, "_path", None)
    try:
        content: bytes = folder.joinpath("entry_points.txt").read_bytes()  # type: ignore[union-attr]
    except (AttributeError, OSError):
        return False
    return f"[{hookspecs.PROJECT}]".encode() in content


def _record_digest(distribution: importlib.metadata.Distribution) -> str:
    record = distribution.read_text("RECORD")
    return "" if record is None else hashlib.sha256(record.encode()).hexdigest()
