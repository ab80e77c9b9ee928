"""Previews a model of the hub from its small files and the headers of its weights.

A header is a few kilobytes at the start of a safetensors file, and lists its tensors.
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.safetensors_header import MAX_HEADER_BYTES
from vlmkit_hf.hub import cache
from vlmkit_hf.hub.failures import explained
from vlmkit_hf.hub.fetching import LIBRARY, snapshot
from vlmkit_hf.hub.repository import CONFIGS, SMALL, files_of_model
from vlmkit_hf.saved.file import FILE

FIRST_BYTES = 2**15  # covers the header of most files
MAX_CONNECTIONS = 8


def previews(
    reference: str, revision: str | None = None, *, is_update: bool = False
) -> Iterator[Checkpoint]:
    """Yield a preview with config and headers of the weights, then one with all small files.

    Yields nothing for a completely cached model. Downloaded files stay in the cache.

    Raises:
        CheckpointError: as :func:`vlmkit_hf.hub.fetching.fetch`.
    """
    from huggingface_hub import is_offline_mode

    is_here = not is_update and cache.cached_folder(reference, revision) is not None
    if is_here or is_offline_mode():
        return
    with explained(reference, revision):
        configs = snapshot(reference, revision, CONFIGS)
    commit = configs.name
    listing = cache.cached_listing(reference, commit)
    if listing is None or cache.cached_folder(reference, commit) is not None:
        return
    names = files_of_model(reference, listing).of(listing)
    with tempfile.TemporaryDirectory(prefix="vlmkit-") as name:
        folder = Path(name)
        _touch(folder, names)
        _copy(configs, folder, CONFIGS.of(names))
        with explained(reference, revision):
            _write_headers(reference, commit, folder)
        if FILE not in names:  # a saved text side is only valid with all other files
            yield Checkpoint(reference, folder, revision, is_preview=True)
        small = SMALL.of(names)
        with explained(reference, revision):
            _copy(snapshot(reference, commit, SMALL), folder, small)
        yield Checkpoint(reference, folder, revision, is_preview=True)


def _touch(folder: Path, names: Iterable[str]) -> None:
    """Create an empty file for each name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _copy(source: Path, folder: Path, names: Iterable[str]) -> None:
    for name in names:
        shutil.copyfile(source / name, folder / name)


def _write_headers(reference: str, commit: str, folder: Path) -> None:
    """Write the hub's headers into the safetensors files of a folder."""
    files = sorted(folder.glob("*.safetensors"))

    def write(path: Path) -> None:
        path.write_bytes(_header(reference, commit, path.name))

    with ThreadPoolExecutor(MAX_CONNECTIONS) as threads:
        for _ in threads.map(write, files):
            pass


def _header(reference: str, commit: str, name: str) -> bytes:
    """Download a safetensors file up to the end of its header."""
    begun = _beginning(reference, commit, name, FIRST_BYTES)
    length = int.from_bytes(begun[:8], "little")
    if length > MAX_HEADER_BYTES:  # the reader of the file reports that it is invalid
        return begun
    if len(begun) < 8 + length:
        begun = _beginning(reference, commit, name, 8 + length)
    return begun[: 8 + length]


def _beginning(reference: str, commit: str, name: str, num_bytes: int) -> bytes:
    """Download the first bytes of a file, and no more if a server sends all of it."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
    )

    headers = {
        **build_hf_headers(library_name=LIBRARY),
        "range": f"bytes=0-{num_bytes - 1}",
        "accept-encoding": "identity",
    }
    url = hf_hub_url(reference, name, revision=commit)
    found = bytearray()
    with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
        hf_raise_for_status(response)
        for piece in response.iter_bytes():
            found += piece
            if len(found) >= num_bytes:
                break
    return bytes(found[:num_bytes])
