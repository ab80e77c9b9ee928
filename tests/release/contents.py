"""Compares the files of sdists and wheels with those that git knows: none is missing or stray.

Run as ``python contents.py FOLDER``. Imports nothing of vlmkit.
"""

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = sorted([*ROOT.glob("packages/*/"), *ROOT.glob("plugins/*/")])
ADDED_TO_SDISTS = {"PKG-INFO", ".gitignore"}
METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")


def tracked(folder: Path) -> set[str]:
    """Return the files of a distribution that git knows, relative to its folder."""
    listed = ["git", "-C", str(folder), "ls-files", "-z"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    return set(filter(None, names.split("\0")))


def problems(folder: Path, built: Path) -> Iterator[str]:
    """Yield what is wrong with the sdist and the wheel of a distribution."""
    name = folder.name.replace("-", "_")
    sdists, wheels = (sorted(built.glob(f"{name}-{end}")) for end in ("*.tar.gz", "*.whl"))
    if len(sdists) != 1 or len(wheels) != 1:
        yield f"{name}: expected one sdist and one wheel, found {len(sdists)} and {len(wheels)}"
        return
    source = tracked(folder)
    with tarfile.open(sdists[0]) as sdist:
        files = {each.name.partition("/")[2] for each in sdist.getmembers() if each.isfile()}
    yield from _differences(sdists[0].name, files - ADDED_TO_SDISTS, source)
    with zipfile.ZipFile(wheels[0]) as wheel:
        files = set(wheel.namelist())
    metadata = {path for path in files if ".dist-info/" in path}
    packaged = {path.removeprefix("src/") for path in source if path.startswith("src/")}
    yield from _differences(wheels[0].name, files - metadata, packaged)
    kinds = {path.partition(".dist-info/")[2] for path in metadata}
    if not set(METADATA) - {"entry_points.txt"} <= kinds <= set(METADATA):
        yield f"{wheels[0].name}: its metadata are {sorted(kinds)}"


def _differences(name: str, found: set[str], expected: set[str]) -> Iterator[str]:
    if stray := found - expected:
        yield f"{name} contains {sorted(stray)[:5]}, which git does not know"
    if missing := expected - found:
        yield f"{name} lacks {sorted(missing)[:5]}"


def main(built: str) -> None:
    """Print every problem, and exit with 1 if there is one."""
    found = [each for folder in FOLDERS for each in problems(folder, Path(built))]
    versions = {path.name.split("-")[1] for path in Path(built).glob("*.whl")}
    if len(versions) != 1:
        found.append(f"the wheels have different versions: {sorted(versions)}")
    sys.stdout.write("".join(f"{each}\n" for each in found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
