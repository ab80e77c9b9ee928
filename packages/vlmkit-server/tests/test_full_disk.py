"""A data folder on a small disk that is really full: a server in a mount namespace of its own."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from running_server import eventually, process, scripted
from test_batches import chat, line, results_of, start_batch, wait_for_end
from test_batches_restart import command

SIZE_BYTES = 8 * 2**20
MOUNT = f'mount -t tmpfs -o size={SIZE_BYTES} tmpfs "$0" && exec "$@"'
LARGE = b"x" * 2**20
MANY_BYTES = 700_000


def in_namespace(folder, *arguments):
    """Return a command that runs another one with a small disk at a folder."""
    return [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        MOUNT,
        folder,
        *arguments,
    ]


@pytest.fixture(scope="module", autouse=True)
def _namespaces(tmp_path_factory):
    """Skip where no disk can be mounted in a namespace."""
    if sys.platform != "linux":
        pytest.skip("mount namespaces are of Linux")
    folder = str(tmp_path_factory.mktemp("disk"))
    tried = subprocess.run(in_namespace(folder, "true"), capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no disk can be mounted here: {tried.stderr.decode().strip()}")


class Disk:
    """The small disk of a server, seen from outside its namespace."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ballast = root / "ballast"

    def fill(self) -> None:
        """Take all room that is left."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (65_536, 4096, 1):
                _write_all(file, b"x" * size)

    def free(self, num_bytes: int | None = None) -> None:
        """Give back so many bytes, or all that :meth:`fill` took."""
        size = self._ballast.stat().st_size
        os.truncate(self._ballast, 0 if num_bytes is None else size - num_bytes)

    @property
    def num_free_bytes(self) -> int:
        stat = os.statvfs(self._root)
        return stat.f_bavail * stat.f_frsize

    @property
    def names(self) -> set[str]:
        return {path.name for path in (self._root / "data/files").iterdir()}


def _write_all(file, piece):
    """Write a piece again and again until there is no room for it."""
    try:
        while True:
            file.write(piece)
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017


@contextmanager
def server_on_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir(exist_ok=True)
    settings = {"folder": str(disk / "data"), "max_batch_requests": 2}
    run = in_namespace(str(disk), *command(tmp_path, **settings))
    with process(run, tmp_path) as server:
        assert eventually(lambda: server.status() == 200)
        yield server, Disk(Path(f"/proc/{server.process.pid}/root{disk}"))


def upload(server, content=LARGE):
    return server.client.files.create(file=("large", content), purpose="user_data")


def refused(ask):
    """Check that something is refused because the disk is full."""
    with pytest.raises(openai.InternalServerError) as caught:
        ask()
    assert (caught.value.status_code, caught.value.code) == (503, "disk_full")
    assert "retry-after" in caught.value.response.headers


def answers(server):
    done = server.client.chat.completions.create(
        model="mock", messages=[{"role": "user", "content": "hello"}]
    )
    return done.choices[0].message.content == "hello"


def test_a_full_disk_refuses_files_and_nothing_else_until_there_is_room(tmp_path):
    with server_on_disk(tmp_path) as (server, disk):
        kept = [upload(server), upload(server, b"small")]
        disk.fill()
        for content in (LARGE, b"x" * 2**16, b"x"):
            refused(lambda content=content: upload(server, content))
            assert disk.names == {file.id for file in kept}
        assert answers(server)
        assert server.client.files.content(kept[0].id).read() == LARGE
        assert server.client.files.list().data == kept[::-1]
        assert server.client.files.delete(kept[0].id).deleted
        new = upload(server, LARGE[:MANY_BYTES])
        assert disk.names == {kept[1].id, new.id}
        disk.fill()
        refused(lambda: upload(server))
        disk.free()
        assert server.client.files.content(upload(server).id).read() == LARGE


def test_whatever_room_is_left_an_upload_is_kept_whole_or_leaves_nothing(tmp_path):
    with server_on_disk(tmp_path) as (server, disk):
        kept, num_refused = [], 0
        for num_pages in range(30):
            disk.fill()
            disk.free(num_pages * 4096)
            try:
                kept.append(upload(server, bytes([num_pages]) * 4096).id)
            except openai.InternalServerError as error:
                assert (error.status_code, error.code) == (503, "disk_full")  # noqa: PT017
                num_refused += 1
            assert disk.names == set(kept)
        assert kept
        assert num_refused
        disk.fill()
        for each in kept:  # small files, and still each can be deleted
            assert server.client.files.delete(each).deleted
        assert eventually(lambda: not disk.names)


@pytest.mark.slow
def test_a_batch_on_a_full_disk_waits_for_room_and_loses_no_answer(tmp_path):
    with server_on_disk(tmp_path) as (server, disk):
        slow = chat(scripted(text="x" * 500, tokens=10, latency_s=0.01))
        batch = start_batch(server.client, [line(str(n), slow) for n in range(40)])

        def num_done():
            return server.client.batches.retrieve(batch.id).request_counts.completed

        assert eventually(lambda: num_done() > 5)
        disk.fill()
        assert eventually(lambda: "results of batches cannot be written" in server.log.read_text())
        refused(lambda: start_batch(server.client, [line("other")]))
        assert answers(server)
        assert num_done() < 40
        disk.free()
        batch = wait_for_end(server.client, batch)
        assert batch.request_counts.completed == 40
        assert results_of(server.client, batch).keys() == {str(n) for n in range(40)}
