"""Keys files: append-only, with clear errors for broken lines, and edited by ``vlmkit keys``."""

import io
import json
import re
import stat
import threading

import msgspec
import pytest

from vlmkit.cli import run
from vlmkit.errors import ConfigError
from vlmkit.settings.scope import SCOPES
from vlmkit_server.auth import key_file
from vlmkit_server.auth.key import Key, digest_of, new_key
from vlmkit_server.auth.key_file import Revoked, add_line, read_lines, valid_keys


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.jsonl"


def command(capsys, *arguments):
    code = run(["keys", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_can_have_any_scope_of_a_route(path, capsys, scope):
    code, _, err = command(capsys, "add", "one", "--scope", scope, "--file", str(path))
    assert not code, err
    assert [key.scopes for key in read_lines(path)] == [(scope,)]


def test_a_secret_is_printed_once_and_stored_nowhere(path, capsys):
    code, out, err = command(capsys, "add", "reader", "--scope", "chat", "--file", str(path))
    secret, [key] = out.strip(), read_lines(path)

    assert code == 0
    assert re.fullmatch(r"vlmkit-[\w-]{43}", secret)
    assert (key.name, key.scopes, key.expires_s) == ("reader", ("chat",), None)
    assert key.digest == digest_of(secret)
    assert secret not in path.read_text() + err
    assert key.tenant == key.id
    _, listed, _ = command(capsys, "list", "--file", str(path))
    assert key.id in listed
    assert secret not in listed
    assert key.digest not in listed


@pytest.mark.posix
def test_a_new_keys_file_is_readable_by_its_owner_only(path):
    add_line(path, new_key("one", ("chat",))[0])

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_are_listed_with_their_state(path, capsys):
    for arguments in (["one", "--tenant", "team"], ["two", "--days", "3"]):
        assert command(capsys, "add", *arguments, "--file", str(path))[0] == 0
    add_line(path, new_key("three", ("admin",), lives_s=0)[0])
    first = read_lines(path)[0].id
    assert command(capsys, "revoke", first, "--file", str(path))[0] == 0

    _, out, _ = command(capsys, "list", "--json", "--file", str(path))

    rows = json.loads(out)
    assert [row["state"] for row in rows] == ["revoked", "valid", "expired"]
    assert [row["scopes"] for row in rows] == ["chat,embed", "chat,embed", "admin"]
    assert rows[0]["tenant"] == "team"
    assert rows[0]["expires"] == "never" != rows[1]["expires"]
    assert command(capsys, "revoke", first, "--file", str(path))[0] == 2


def test_the_keys_file_of_the_config_is_the_default(path, capsys):
    where = ["--set", f"server.keys_file={path}"]
    assert command(capsys, "add", "one", *where)[0] == 0
    assert len(read_lines(path)) == 1
    code, _, err = command(capsys, "list")
    assert code == 2
    assert "server.keys_file" in err


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, 'a"b', "a\nb", "a\n"])
def test_a_key_name_with_unprintable_characters_is_refused(path, capsys, name):
    assert command(capsys, "add", name, "--file", str(path))[0] == 2
    assert not path.exists()


def test_keys_added_concurrently_are_all_stored(path):
    keys = [new_key(f"key{number}", ("chat",))[0] for number in range(40)]
    threads = [threading.Thread(target=add_line, args=(path, key)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {key.id for key in valid_keys(read_lines(path))} == {key.id for key in keys}


@pytest.mark.posix
def test_a_key_cut_off_by_a_full_disk_damages_no_key_of_another_process(path, monkeypatch):
    """A line that a full disk cuts off is removed, so that the next key does not continue it."""
    full, other = (new_key(name, ("chat",))[0] for name in ("full", "other"))
    add_line(path, new_key("first", ("chat",))[0])
    adding = threading.Thread(target=add_line, args=(path, other))

    class Disk(io.FileIO):
        """Writes half of a line, while another process adds one."""

        def write(self, content):
            num_written = super().write(bytes(content)[: len(content) // 2])
            adding.start()
            adding.join(1)
            return num_written

    def opened(path, mode, *, opener, **_):
        return (
            Disk(path, "ab+", opener=opener)
            if threading.current_thread() is main
            else open(path, mode, buffering=0, opener=opener)
        )

    main = threading.current_thread()
    monkeypatch.setattr(key_file, "open", opened, raising=False)
    with pytest.raises(ConfigError, match="there is no room"):
        add_line(path, full)
    adding.join()
    assert [key.name for key in read_lines(path)] == ["first", "other"]


def test_a_new_key_does_not_continue_a_line_without_newline(path):
    first, second = (new_key(name, ("chat",))[0] for name in ("one", "two"))
    path.write_bytes(msgspec.json.encode(first))  # an editor omitted the newline
    add_line(path, second)

    assert read_lines(path) == [first, second]


def test_an_invalid_line_is_reported_by_number_and_never_quoted(path):
    key, secret = new_key("one", ("chat",))
    add_line(path, key)
    for wrong in (
        secret,
        '{"type": "key"}',
        msgspec.json.encode(msgspec.structs.replace(key, scopes=("all",))).decode(),
        msgspec.json.encode(msgspec.structs.replace(key, digest="short")).decode(),
        '{"type": "revoked", "id": "x", "at_s": 1, "by": "me"}',
        '{"type": "else"}',
        "\x00\xff",
    ):
        path.write_text(msgspec.json.encode(key).decode() + "\n\n" + wrong + "\n")
        with pytest.raises(ConfigError, match="line 3") as caught:
            read_lines(path)
        assert wrong not in str(caught.value)


def test_a_file_that_is_no_keys_file_is_not_changed(path, capsys):
    path.write_text("[server]\n")

    assert command(capsys, "add", "one", "--file", str(path))[0] == 2
    assert path.read_text() == "[server]\n"


def test_a_revocation_is_valid_before_and_after_its_key(path):
    key, _ = new_key("one", ("chat",))
    for line in (Revoked(key.id, 1), key, key):
        add_line(path, line)

    assert valid_keys(read_lines(path)) == []
    assert [type(line) for line in read_lines(path)] == [Revoked, Key, Key]
