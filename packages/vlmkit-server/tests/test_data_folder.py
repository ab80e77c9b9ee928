"""A data folder: the server never deletes or changes foreign files."""

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import openai
import pytest
from running_server import eventually, running
from test_batches_restart import files, server_process

from vlmkit.cli import run
from vlmkit.errors import ConfigError
from vlmkit_server.rate_limits.usage_file import UsageFile
from vlmkit_server.settings.limits import LimitsSettings
from vlmkit_server.settings.server import DataSettings
from vlmkit_server.storage.data_folder import SCHEMA, Folder

OURS = "file-" + "0a" * 24
DATABASE = "vlmkit.sqlite3"


def folder_of(root):
    return Folder(DataSettings(folder=str(root)))


def contents(root):
    """Return all files below a folder, and links as their targets."""
    paths = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    return {
        str(path.relative_to(root)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in paths
    }


def upload(server, content=b"what it holds"):
    return server.client().files.create(file=("a", content), purpose="user_data")


def folder_settings(root):
    return {"folder": str(root)}


# Foreign folders.


def foreign(folder, name):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("years of work")
    return contents(folder)


@pytest.mark.parametrize("name", ["files/thesis.tex", "thesis.tex", ".git/config", "files/a/b"])
def test_a_folder_with_foreign_files_is_refused_and_unchanged(tmp_path, monkeypatch, name):
    before = foreign(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(ConfigError, match=r"server.data.folder '.' is not empty"),
        running(data=DataSettings(folder=".")),
    ):
        pass
    assert contents(tmp_path) == before


def test_the_command_names_the_refused_folder_and_a_remedy(tmp_path):
    before = foreign(tmp_path, "files/thesis.tex")
    arguments = ["serve", "mock", "--port", "0", "--set", "server.data.folder=."]
    command = [sys.executable, "-m", "vlmkit", *arguments]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, check=False, text=True, timeout=100
    )
    assert ended.returncode == 2, ended.stderr
    assert "error: server.data.folder '.' is not empty" in ended.stderr
    assert "hint: name a folder that is empty or not there yet" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert contents(tmp_path) == before


def test_a_new_folder_may_hold_other_files_of_the_same_server(tmp_path):
    named = {"keys_file": "keys.jsonl", "access_log": "access.jsonl", "audit_log": "audit.jsonl"}
    assert run(["keys", "add", "one", "--file", str(tmp_path / "keys.jsonl")]) == 0
    (tmp_path / "lost+found").mkdir()
    settings = {name: str(tmp_path / file) for name, file in named.items()}
    limits = {"key": ("requests=9/day",), "usage_file": str(tmp_path / "usage.sqlite")}
    with running(
        data=DataSettings(**folder_settings(tmp_path)), limits=LimitsSettings(**limits), **settings
    ):
        assert (tmp_path / DATABASE).exists()


def test_foreign_files_in_the_data_folder_stay(tmp_path):
    with running(data=DataSettings(**folder_settings(tmp_path / "data"))) as server:
        file = upload(server)
    (tmp_path / "data/files/thesis.tex").write_text("years of work")
    (tmp_path / "data/files/more").mkdir()
    (tmp_path / "data/notes").write_text("more")
    before = contents(tmp_path / "data/files")
    with running(data=DataSettings(**folder_settings(tmp_path / "data"))) as server:
        assert server.client().files.content(file.id).read() == b"what it holds"
    assert contents(tmp_path / "data/files") == before
    assert (tmp_path / "data/notes").read_text() == "more"


# Lost, old, newer and foreign databases.


@pytest.mark.posix
def test_a_folder_that_is_not_writable_is_refused_by_its_permissions(tmp_path):
    root = Path(tempfile.mkdtemp())
    try:
        for child in (root, *(root / name for name in ("empty", "used"))):
            child.mkdir(exist_ok=True)
            child.chmod(0o755)
        folder_of(root / "used").close()
        (root / "used" / DATABASE).chmod(0o444)
        for name in ("empty", "used"):
            (root / name).chmod(0o555)
            with without_rights(), pytest.raises(ConfigError, match="is not writable") as caught:
                folder_of(root / name)
            assert "read and write access to" in caught.value.hint
    finally:
        for name in ("empty", "used"):
            (root / name).chmod(0o755)
        shutil.rmtree(root)


@contextlib.contextmanager
def without_rights():
    """Make file permissions apply to root, too."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_stored_files_without_their_database_are_refused_and_stay(tmp_path, capsys):
    with running(data=DataSettings(**folder_settings(tmp_path))) as server:
        upload(server)
    for path in tmp_path.glob(f"{DATABASE}*"):
        path.unlink()
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"has stored files \(1\) but no database") as caught:
            folder_of(tmp_path)
        assert "restore 'vlmkit.sqlite3' from a backup" in caught.value.hint
        assert contents(tmp_path) == before


def test_an_empty_database_beside_stored_files_is_refused(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / OURS).write_text("an upload")
    (tmp_path / DATABASE).touch()
    with pytest.raises(ConfigError, match=r"has stored files \(1\) but no database"):
        folder_of(tmp_path)
    assert (tmp_path / "files" / OURS).read_text() == "an upload"


def test_files_missing_in_an_older_database_stay_and_are_logged(tmp_path, caplog):
    root = tmp_path / "data"
    with running(data=DataSettings(**folder_settings(root))) as server:
        first = upload(server, b"first")
    shutil.copytree(root, tmp_path / "backup")
    with running(data=DataSettings(**folder_settings(root))) as server:
        second = upload(server, b"second")
    for path in root.glob(f"{DATABASE}*"):
        path.unlink()
    shutil.copy(tmp_path / "backup" / DATABASE, root)
    with running(data=DataSettings(**folder_settings(root))) as server:
        assert server.client().files.content(first.id).read() == b"first"
        with pytest.raises(openai.NotFoundError):
            server.client().files.content(second.id)
    assert (root / "files" / second.id).read_bytes() == b"second"
    assert "1 files are not in the database; they are kept and not counted" in caplog.text
    assert second.id not in caplog.text


def database(path, *statements):
    with sqlite3.connect(path) as on:
        for statement in statements:
            on.execute(statement)
    on.close()


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["PRAGMA user_version = 7"], "its schema has version 7, expected 1"),
        (["CREATE TABLE notes (text)"], "it is a database of another program"),
        (["CREATE TABLE files (path)", "PRAGMA user_version = 7"], "has version 7"),
        ([], "file is not a database"),
    ],
)
def test_a_database_of_another_version_or_program_is_refused_and_stays(
    tmp_path, statements, problem
):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / OURS).write_text("an upload")
    database(tmp_path / DATABASE, *statements)
    if not statements:
        (tmp_path / DATABASE).write_bytes(b"no database, " * 1000)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=problem):
        folder_of(tmp_path)
    assert contents(tmp_path) == before


def test_a_data_folder_of_the_first_release_is_read(tmp_path):
    """The database of the first release has no table of pending unlinks."""
    tables = [each for each in SCHEMA.split(";") if each.strip() and "pending_unlinks" not in each]
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / OURS).write_text("an upload")
    owner = b"owner"
    database(tmp_path / DATABASE, "PRAGMA journal_mode=WAL", *tables, "PRAGMA user_version = 1")
    with sqlite3.connect(tmp_path / DATABASE) as on:
        row = (OURS, owner, "a", "user_data", "text/plain", 9, 1)
        on.execute(
            "INSERT INTO files (id, owner, filename, purpose, media_type, num_bytes, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            row,
        )
    on.close()
    with running(data=DataSettings(**folder_settings(tmp_path))) as server:
        assert (tmp_path / "files" / OURS).read_text() == "an upload"
        file = upload(server)
        server.client().files.delete(file.id)
    assert set(contents(tmp_path / "files")) == {OURS}


# Remains of a killed process.


@pytest.mark.slow
@pytest.mark.posix
def test_the_next_start_unlinks_an_interrupted_upload_and_nothing_else(tmp_path):
    head = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    with server_process(tmp_path) as server:
        whole = server.client.files.create(file=("a", b"whole"), purpose="user_data")
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(
                b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000000\r\n"
                b"content-type: multipart/form-data; boundary=x\r\n\r\n" + head + b"x" * 3_000_000
            )
            assert eventually(lambda: len(files(tmp_path)) == 2)
            server.process.kill()
            server.process.wait()
    assert len(files(tmp_path)) == 2
    other = tmp_path / "data/files" / f"{OURS}.part"
    other.write_text("of a database that was lost")
    with server_process(tmp_path) as server:
        assert server.client.files.content(whole.id).read() == b"whole"
        assert {path.name for path in files(tmp_path)} == {whole.id, other.name}
        server.client.files.delete(whole.id)
        assert {path.name for path in files(tmp_path)} == {other.name}


# Links.


@pytest.mark.posix
@pytest.mark.parametrize("name", ["files", DATABASE])
def test_a_symbolic_link_within_the_folder_is_refused(tmp_path, name):
    target = tmp_path / "target"
    (tmp_path / "data").mkdir()
    if name == "files":
        target.mkdir()
        (target / OURS).write_text("another's")
    (tmp_path / "data" / name).symlink_to(target)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="is a symbolic link"):
        folder_of(tmp_path / "data")
    assert contents(tmp_path) == before


@pytest.mark.posix
def test_a_link_pipe_or_folder_with_the_name_of_a_stored_file_is_not_opened(tmp_path):
    (tmp_path / "secret").write_text("a secret of the operator")
    with running(data=DataSettings(**folder_settings(tmp_path / "data"))) as server:
        client = server.client()
        for make in ("link", "pipe", "folder"):
            file = upload(server)
            path = tmp_path / "data/files" / file.id
            path.unlink()
            if make == "link":
                path.symlink_to(tmp_path / "secret")
            else:
                (os.mkfifo if make == "pipe" else os.mkdir)(path)
            with pytest.raises(openai.NotFoundError):
                client.files.content(file.id)
            client.files.delete(file.id)
    assert (tmp_path / "secret").read_text() == "a secret of the operator"


@pytest.mark.posix
def test_replacing_the_files_folder_by_a_link_redirects_no_access(tmp_path):
    folder = folder_of(tmp_path / "data")
    folder.write(OURS, 0, b"ours")
    other = tmp_path / "other"
    other.mkdir()
    (other / OURS).write_text("another's")
    (tmp_path / "data/files").rename(tmp_path / "moved")
    (tmp_path / "data/files").symlink_to(other)
    folder.write(OURS, 0, b"changed")
    assert folder.read(OURS, 0, 9) == b"changed"
    folder.remove(OURS)
    assert (other / OURS).read_text() == "another's"
    assert not (tmp_path / "moved" / OURS).exists()
    folder.close()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "thesis.tex", f"{OURS}/../x", ""])
def test_only_names_of_stored_files_are_opened_or_unlinked(tmp_path, name):
    """A manipulated database cannot name other files."""
    (tmp_path / "data").mkdir()
    folder = folder_of(tmp_path / "data")
    (tmp_path / "data/secret").write_text("a secret")
    (tmp_path / "data/files/thesis.tex").write_text("years of work")
    before = contents(tmp_path / "data")
    folder.remove(name)
    for use in (lambda: folder.read(name, 0, 9), lambda: folder.write(name, 0, b"x")):
        with pytest.raises(FileNotFoundError):
            use()
    assert contents(tmp_path / "data") == before
    folder.close()


# The usage file.


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE notes (text)", "CREATE TABLE usage (who, how_much)"]
)
def test_a_usage_file_of_another_program_is_refused_and_unchanged(tmp_path, statement):
    path = tmp_path / "notes.sqlite"
    database(path, statement)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="it is a database of another program"):
        UsageFile(path, list)
    assert contents(tmp_path) == before
