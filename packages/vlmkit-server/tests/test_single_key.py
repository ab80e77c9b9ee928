"""One key for all clients, from a variable or a file, and never shown."""

import asyncio
import signal
import sys

import msgspec
import pytest
from running_server import chat, eventually, process, running

from vlmkit import cli
from vlmkit.errors import ConfigError
from vlmkit_server.auth.key_ring import KeyRing
from vlmkit_server.run import serve
from vlmkit_server.settings.fleet import FleetSettings
from vlmkit_server.settings.server import ServerSettings

SECRET, OTHER = "a-key-of-at-least-sixteen-characters", "another-key-that-is-long-enough"


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def test_every_client_needs_the_configured_key():
    with running(api_key=SECRET) as server:
        assert server.post(chat()).status_code == 401
        assert server.post(chat(), headers=bearer(OTHER)).status_code == 401
        assert server.post(chat(), headers=bearer(SECRET)).status_code == 200
        assert server.post(chat(), headers={"x-api-key": SECRET}).status_code == 200
        assert server.get("/healthz").status_code == 200


def test_the_configured_key_may_chat_and_embed_and_nothing_else():
    fleet = FleetSettings(manage=True)
    with running(api_key=SECRET, fleet=fleet) as server:
        headers = bearer(SECRET)
        embeddings = {"model": "mock", "input": "hello"}
        assert server.post(embeddings, "/v1/embeddings", headers=headers).status_code == 200
        load = server.post({"model": "mock"}, "/v1/models/load", headers=headers)
        tokens = {"model": "mock", "token_ids": [104, 105], "sampling_params": {}}
        generated = server.post(tokens, "/inference/v1/generate", headers=headers)
        assert load.status_code == 403
        assert generated.status_code == 404  # no key of this server can have its scope


def test_keys_are_checked_in_the_thread_of_the_event_loop(monkeypatch):
    find = KeyRing.find

    def checked(keys, secret):
        asyncio.get_running_loop()  # raises in any other thread
        return find(keys, secret)

    with running(api_key=SECRET) as server:
        monkeypatch.setattr(KeyRing, "find", checked)
        assert server.get("/v1/models", headers=bearer(SECRET)).status_code == 200


@pytest.mark.parametrize(("length", "is_valid"), [(15, False), (16, True)])
def test_the_configured_key_has_sixteen_characters_or_more(length, is_valid, capsys):
    code = cli.run(["config", "check", "--set", f"server.api_key={'k' * length}"])
    assert (code == 0) is is_valid, capsys.readouterr()


@pytest.mark.posix
def test_an_environment_variable_sets_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("VLMKIT_SERVER__API_KEY", SECRET)
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    with process(command, tmp_path) as server:
        ready = lambda: server.get("/readyz", headers=bearer(SECRET)).status_code == 200  # noqa: E731
        assert eventually(ready)
        assert server.post(chat()).status_code == 401
        assert server.post(chat(), headers=bearer(SECRET)).status_code == 200
        assert SECRET not in server.log.read_text()


@pytest.mark.posix
def test_the_key_file_is_reloaded_on_sighup(tmp_path):
    (file := tmp_path / "key").write_text(f"{SECRET}\n")
    option = f"server.api_key_file={file}"
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0", "--set", option]
    with process(command, tmp_path) as server:
        status = lambda secret: server.get("/version", headers=bearer(secret)).status_code  # noqa: E731
        assert (status(SECRET), status(OTHER)) == (200, 401)
        file.write_text(OTHER)
        server.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: (status(SECRET), status(OTHER)) == (401, 200))


def test_a_public_address_is_allowed_with_one_key():
    guarded = ServerSettings(host="192.0.2.1", api_key=SECRET)
    with pytest.raises(ConfigError, match="cannot be listened on"):
        serve({}, guarded)


@pytest.mark.parametrize("content", ["", "short", "two words of text here", "ä" * 20, "x" * 600])
def test_an_invalid_key_is_refused_and_not_quoted(content, tmp_path, capsys):
    (file := tmp_path / "key").write_text(content)
    assert cli.run(["serve", "mock", "--set", f"server.api_key_file={file}"]) == 2
    output = capsys.readouterr().err
    assert "must hold one key and nothing else" in output
    assert not content or content not in output
    if content:
        assert cli.run(["serve", "mock", "--set", f"server.api_key={content}"]) == 2
        output = capsys.readouterr().err
        assert "server.api_key = ***" in output
        assert content not in output


def test_two_sources_of_keys_are_refused(tmp_path):
    for name in ("keys", "key"):
        (tmp_path / name).touch()
    files = {"keys_file": str(tmp_path / "keys"), "api_key_file": str(tmp_path / "key")}
    with pytest.raises(ConfigError, match=r"server.keys_file and server.api_key_file are set"):
        serve({}, ServerSettings(**files))


def test_config_show_hides_the_key(monkeypatch, capsys):
    monkeypatch.setenv("VLMKIT_SERVER__API_KEY", SECRET)
    assert cli.run(["config", "show"]) == 0
    output = capsys.readouterr().out
    assert SECRET not in output
    assert "***" in next(line for line in output.splitlines() if line.startswith("server.api_key "))


def test_child_processes_that_handle_client_files_do_not_receive_the_key(tmp_path, monkeypatch):
    """Neither their environment nor their build plans contain it."""
    from vlmkit.config.constraint_plan import ConstraintPlan
    from vlmkit.config.renderer_plan import TextSide
    from vlmkit.running.prompting.renderers.process import child_environment

    monkeypatch.setenv("VLMKIT_SERVER__API_KEY", SECRET)
    assert SECRET not in child_environment().values()
    for plan in (TextSide, ConstraintPlan):
        kinds = {field.type for field in msgspec.structs.fields(plan)}
        assert ServerSettings not in kinds
        assert not any("Config" in str(kind) for kind in kinds)
