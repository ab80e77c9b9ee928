"""``vlmkit serve --check`` reports all problems at once, and changes nothing on disk."""

import contextlib
import os
import shutil
import socket
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from vlmkit import cli
from vlmkit_server.auth.key import new_key
from vlmkit_server.auth.key_file import add_line

CONFIG = """
model = "mock"

[server]
port = PORT
keys_file = "keys.jsonl"
tls_certificate = "certificate.pem"
tls_private_key = "key.pem"
access_log = "logs/access.jsonl"
audit_log = "logs/audit.jsonl"
limits.usage_file = "usage.sqlite"
data.folder = "data"

[observers]
use = ["log"]
log.file = "requests.jsonl"
"""


def checked(capsys, config, *options):
    """Return the exit code and the output."""
    code = cli.run(["serve", "--check", "--config", str(config), *options])
    return code, capsys.readouterr()


def write_certificate(folder, **how):
    issued = trustme.CA().issue_cert("models.example.com", **how)
    chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
    (folder / "certificate.pem").write_bytes(chain)
    (folder / "key.pem").write_bytes(issued.private_key_pem.bytes())
    (folder / "key.pem").chmod(0o600)


@pytest.fixture
def config(tmp_path):
    """A config whose files all exist."""
    write_certificate(tmp_path)
    add_line(tmp_path / "keys.jsonl", new_key("alice", ("chat",))[0])
    (tmp_path / "logs").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = tmp_path / "vlmkit.toml"
    file.write_text(CONFIG.replace("PORT", str(port)))
    return file


def entries(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_valid_config_passes_and_nothing_is_created(config, capsys):
    before = entries(config.parent)
    code, said = checked(capsys, config)
    assert (code, said.err) == (0, "")
    assert said.out.startswith("valid: it would listen on https://127.0.0.1:")
    assert entries(config.parent) == before


def test_every_problem_is_reported_at_once(config, capsys):
    folder = config.parent
    shutil.rmtree(folder / "logs")
    for name in ("keys.jsonl", "certificate.pem"):
        (folder / name).write_text("nothing of ours")
    (folder / "data").mkdir()
    (folder / "data" / "thesis.tex").touch()
    (folder / "usage.sqlite").write_text("no database " * 100)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = [f"server.port={port}", "engine.latency=1", "observers.log.file=/no/requests"]
        code, said = checked(capsys, config, *[each for o in options for each in ("--set", o)])
    assert code == 1
    assert not said.out
    problems = [line for line in said.err.splitlines() if line.startswith("error: ")]
    expected = [
        "no installed engine has a setting 'latency'",
        f"server.access_log '{folder}/logs/access.jsonl' cannot be written: there is no folder",
        f"server.audit_log '{folder}/logs/audit.jsonl' cannot be written: there is no folder",
        "observers.log.file '/no/requests' cannot be written: there is no folder '/no'",
        f"keys file '{folder}/keys.jsonl', line 1, is no key",
        f"server.tls_certificate '{folder}/certificate.pem' contains no certificate in PEM",
        f"usage file '{folder}/usage.sqlite' cannot be used",
        f"server.data.folder '{folder}/data' is not empty",
        f"host '127.0.0.1', port {port} cannot be listened on: Address already in use",
    ]
    assert len(problems) == len(expected)
    for problem, words in zip(problems, expected, strict=True):
        assert problem.startswith(f"error: {words}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["model=./none"], "model folder './none' does not exist"),
        (["model=mokc"], "model 'mokc' is not a packaged name"),
        (['server={host="192.0.2.1", keys_file=""}'], "can be reached by other machines"),
        (
            ["server.health_metrics=true"],
            "server.health_metrics is set, and server.health_port is not",
        ),
        (["server.prot=1"], "unknown setting 'server.prot'"),
        (["server.data.folder=/dev/null"], "server.data.folder '/dev/null' cannot be used"),
        (["server.keys_file=none.jsonl"], "keys file 'none.jsonl' cannot be read: No such file"),
        (["tokenizer.use=mock", "tokenizer.chat_template=x"], "has no setting 'chat_template'"),
    ],
)
def test_each_problem_is_reported_by_name(options, words, config, capsys):
    code, said = checked(capsys, config, *[each for o in options for each in ("--set", o)])
    assert code == 1
    assert words in said.err


def test_all_invalid_settings_are_reported_at_once(config, capsys):
    wrong = ("server.prot=1", "server.port=web", "server.keepalive_s=-1")
    code, said = checked(capsys, config, *[each for o in wrong for each in ("--set", o)])
    assert code == 1
    assert said.err.count("error: ") == 3


def errors_of(said):
    return [line for line in said.err.splitlines() if line.startswith("error: ")]


def test_an_invalid_setting_does_not_hide_other_problems(config, capsys):
    folder = config.parent
    (folder / "keys.jsonl").write_text("one\n\ntwo")
    (folder / "certificate.pem").unlink()
    (folder / "key.pem").unlink()
    wrong = (
        "server.prot=1",
        "server.keepalive_s=-1",
        'server.limits.key=["tokens=1/second", "requests=9/day", "images=x/day"]',
        'plugins.only=["vlmkit-mok", "vlmkit-mock", "vlmkit-none"]',
        "observers.log.fiel=x",
        "observers.log.colour=x",
    )
    code, said = checked(capsys, config, *[each for o in wrong for each in ("--set", o)])
    assert code == 1
    expected = [
        "unknown setting 'server.prot'",
        "server.keepalive_s = -1 (--set server.keepalive_s): expected a number above 0",
        "server.limits.key[0] = 'tokens=1/second'",
        "server.limits.key[2] = 'images=x/day'",
        "plugins.only names 'vlmkit-mok'",
        "plugins.only names 'vlmkit-none'",
        "observer 'log' has no setting 'fiel'",
        "observer 'log' has no setting 'colour'",
        f"keys file '{folder}/keys.jsonl', line 1, is no key",
        f"keys file '{folder}/keys.jsonl', line 3, is no key",
        f"server.tls_certificate '{folder}/certificate.pem' does not exist",
        f"server.tls_private_key '{folder}/key.pem' does not exist",
    ]
    problems = errors_of(said)
    assert len(problems) == len(expected), said.err
    for problem, words in zip(problems, expected, strict=True):
        assert problem.startswith(f"error: {words}")


def test_invalid_settings_do_not_hide_problems_of_models_and_providers(config, capsys):
    wrong = (
        "server.prot=1",
        "observers.log.colour=x",
        "engine.latency=1",
        'models=[{model="./none", engin={}}, {model="mock", tokenizer={use="none"}}]',
    )
    config.write_text(config.read_text().replace('model = "mock"', ""))
    _, said = checked(capsys, config, *[each for o in wrong for each in ("--set", o)])
    for words in (
        "unknown setting 'models[0].engin'",
        "observer 'log' has no setting 'colour'",
        "engine has a setting 'latency'",
        "model folder './none' does not exist",
        "tokenizer.use = 'none'",
    ):
        assert words in said.err


def test_an_invalid_setting_causes_no_further_problem(config, capsys):
    for wrong in (
        "server.key_file=x",
        "server.port=x",
        "server.data=5",
        "model=[]",
        "plugins.onli=x",
        'plugins.only="vlmkit-mock"',
        'plugins.only=["vlmkit-mok"]',
    ):
        code, said = checked(capsys, config, "--set", wrong, "--set", "server.host=0.0.0.0")
        assert (code, len(errors_of(said))) == (1, 1), said.err


def test_no_plugin_is_loaded_if_the_plugin_settings_are_invalid(config, capsys, tmp_path):
    plugin = tmp_path / "own.py"
    plugin.write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    code, said = checked(capsys, config, "--set", 'plugins={only="a", files=["own.py"]}')
    assert code == 1
    assert "plugins.only = 'a'" in said.err
    assert not (tmp_path / "was_run").exists()


def test_conflicting_models_are_checked_further(config, capsys):
    several = 'models=[{model="./none"}, {model="mock"}, {model="mock"}]'
    code, said = checked(capsys, config, "--set", several, "--set", "server.keys_file=none")
    assert code == 1
    for words in ("both model and models", "two models are called 'mock'", "folder './none'"):
        assert words in said.err
    assert "keys file 'none' cannot be read" in said.err


def test_both_ports_are_checked(config, capsys):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        ports = [each.getsockname()[1] for each in (one, two)]
        options = f"server={{port={ports[0]}, health_port={ports[1]}}}"
        code, said = checked(capsys, config, "--set", options)
    assert code == 1
    for port in ports:
        assert f"port {port} cannot be listened on: Address already in use" in said.err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("folder", ["/proc", "/proc/vlmkit-data", "/proc/self/fd/none"])
def test_a_data_folder_in_which_no_file_can_be_created_is_reported(folder, config, capsys):
    code, said = checked(capsys, config, "--set", f"server.data.folder={folder}")
    assert code == 1
    (problem,) = errors_of(said)
    assert problem.startswith(f"error: server.data.folder '{folder}' cannot be used: no ")
    assert "in '/proc" in problem
    assert "hint: name a folder that the server's user can write to" in said.err


def test_equal_ports_are_reported(config, capsys):
    port = config.read_text().partition("port = ")[2].partition("\n")[0]
    code, said = checked(capsys, config, "--set", f"server.health_port={port}")
    assert code == 1
    assert said.err.endswith("hint: choose another server.health_port\n")


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


@pytest.mark.posix
def test_missing_permissions_are_reported(config, capsys):
    assert checked(capsys, config)[0] == 0  # imports all modules while they are readable
    with tempfile.TemporaryDirectory() as there:  # pytest's folders are private
        folder = Path(there) / "etc"
        shutil.copytree(config.parent, folder)
        for name in ("keys.jsonl", "key.pem"):
            (folder / name).chmod(0o000)
        for each in (Path(there), folder, folder / "logs"):
            each.chmod(0o555)
        with without_rights():
            code, said = checked(capsys, folder / config.name)
        for each in (folder / "logs", folder, Path(there)):
            each.chmod(0o755)
    assert code == 1
    problems = [line for line in said.err.splitlines() if line.startswith("error: ")]
    not_created = (
        ("server.data.folder", "data", "used", folder),
        ("server.limits.usage_file", "usage.sqlite", "written", folder),
        ("server.access_log", "logs/access.jsonl", "written", folder / "logs"),
        ("server.audit_log", "logs/audit.jsonl", "written", folder / "logs"),
        ("observers.log.file", "requests.jsonl", "written", folder),
    )
    assert problems[:-2] == [
        f"error: {setting} '{folder}/{name}' cannot be {verb}: no permission to create files in "
        f"'{where}'"
        for setting, name, verb, where in not_created
    ]
    key, denied = f"server.tls_private_key '{folder}/key.pem'", "cannot be read: Permission denied"
    assert problems[-2:] == [
        f"error: keys file '{folder}/keys.jsonl' {denied}",
        f"error: {key} {denied}",
    ]


@pytest.mark.posix
def test_problems_that_do_not_prevent_a_start_are_warnings(config, capsys):
    folder = config.parent
    now = datetime.now(UTC)
    write_certificate(folder, not_after=now - timedelta(days=1))
    (folder / "key.pem").chmod(0o644)
    (folder / "keys.jsonl").write_text("")
    (folder / "keys.jsonl").chmod(0o666)
    code, said = checked(capsys, config)
    assert code == 0
    day = (now - timedelta(days=1)).strftime("%Y-%m-%d")
    assert said.err.splitlines() == [
        f"warning: server.keys_file '{folder}/keys.jsonl' has no valid key",
        f"warning: server.keys_file '{folder}/keys.jsonl' can be written by every user",
        f"warning: the private key '{folder}/key.pem' can be read by every user",
        f"warning: server.tls_certificate '{folder}/certificate.pem' expired on {day}",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("key", "cannot be used with the key"),
        ("certificate", "contains no certificate in PEM"),
        ("pair", "do not match"),
    ],
)
def test_the_invalid_file_of_a_certificate_is_named(change, words, config, capsys):
    folder = config.parent
    other = folder / "other"
    other.mkdir()
    write_certificate(other)
    if change == "pair":
        shutil.copy(other / "key.pem", folder / "key.pem")
    else:
        (folder / f"{change}.pem").write_text("none")
    code, said = checked(capsys, config)
    assert code == 1
    assert words in said.err


def test_a_running_server_is_detected_by_its_port_and_data_folder(config, capsys):
    from vlmkit_server.settings.server import DataSettings
    from vlmkit_server.storage.data_folder import Folder

    kept = Folder(DataSettings(folder=str(config.parent / "data")))
    try:
        code, said = checked(capsys, config)
    finally:
        kept.close()
    assert code == 1
    assert "is used by another process" in said.err
    assert checked(capsys, config)[0] == 0


def test_an_excluded_plugin_that_a_model_needs_is_named(config, capsys):
    pytest.importorskip("vlmkit_demo")
    code, said = checked(capsys, config, "demo", "--set", 'plugins.only=["vlmkit-mock"]')
    assert code == 1
    assert "plugins.only excludes plugin 'demo' of vlmkit-demo" in said.err
    assert "add 'vlmkit-demo' to it" in said.err


def test_a_wrong_selection_of_apis_is_reported_once(capsys, config):
    selection = ("--set", 'plugins.only=["vlmkit-mock"]', "--set", 'apis.use=["ollama"]')
    code, output = checked(capsys, config, *selection)
    assert code != 0
    assert output.err.count("no installed plugin provides api 'ollama'") == 1
