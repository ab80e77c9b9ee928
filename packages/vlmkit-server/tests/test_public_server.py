"""What the command says where other machines can reach the server: one error, or its warnings."""

import subprocess
import sys

import pytest
from running_server import process
from test_tls import FILES, write_certificate

from vlmkit.cli import run

SECRET = "a-key-of-at-least-sixteen-characters"
TLS = "server.tls_certificate is not set: without TLS, API keys are sent in plain text"
KEY_LIMITS = "server.limits.key is not set: keys without limits of their own are unlimited"
ADDRESS_LIMITS = "server.limits.address is not set: an address may send any number of requests"
SERVE = [sys.executable, "-m", "vlmkit", "serve", "mock", "--host", "0.0.0.0", "--port", "0"]
NEVER_BUILT = """
from vlmkit.plugins.hookspecs import hookimpl

VLMKIT_API = (1, 0)


def build(context):
    raise AssertionError("a component was built before the address was refused")


@hookimpl
def vlmkit_register_monitors(registry):
    registry.add("unbuildable", build)
"""


def test_a_public_address_without_a_key_is_one_error_before_anything_is_built(tmp_path):
    (tmp_path / "unbuildable.py").write_text(NEVER_BUILT)
    (tmp_path / "vlmkit.toml").write_text(
        'plugins = ["./unbuildable.py"]\nmonitors.use = ["unbuildable"]\n'
    )
    command = [*SERVE, "--config", "vlmkit.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error == (
        "error: host '0.0.0.0' can be reached by other machines, and no API key is required"
    )
    assert hint.startswith("hint: create one by vlmkit keys add")
    keyed = [*command, "--set", f"server.api_key={SECRET}"]
    done = subprocess.run(keyed, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "a component was built before" in done.stderr


def test_a_batch_needs_no_key_since_nobody_reaches_it(tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    words = ["batch", "mock", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")]
    assert run([*words, "--set", "server.host=0.0.0.0"]) == 0


@pytest.mark.posix
def test_a_server_with_keys_warns_of_plain_text_and_of_keys_without_limits(tmp_path):
    settings = ["--set", f"server.api_key={SECRET}", "--set", "server.num_renderers=0"]
    with process([*SERVE, *settings], tmp_path) as server:
        log = server.log.read_text().splitlines()
    for warning in (TLS, KEY_LIMITS):
        assert len([line for line in log if warning in line and "WARNING" in line]) == 1, warning
    assert not [line for line in log if "server.limits.address" in line]
    assert not [line for line in log if "any client may use this server" in line]


def test_the_check_warns_of_what_a_public_server_does_not_set(capsys):
    check = ["serve", "mock", "--check", "--host", "0.0.0.0", "--port", "0"]
    keyed, open_to_all = f"server.api_key={SECRET}", "server.allow_public_without_key=true"

    def warnings(*settings):
        assigned = [word for each in settings for word in ("--set", each)]
        assert run([*check, *assigned]) == 0
        return capsys.readouterr().err

    shown = warnings(keyed)
    assert f"warning: {TLS}\n" in shown
    assert f"warning: {KEY_LIMITS}\n" in shown
    assert ADDRESS_LIMITS not in shown

    shown = warnings(open_to_all)
    assert f"warning: {ADDRESS_LIMITS}\n" in shown
    assert KEY_LIMITS not in shown
    assert TLS not in shown

    limited = 'server.limits.key=["requests=60/minute"]'
    assert "server.limits" not in warnings(keyed, limited)


def test_no_warning_of_plain_text_is_shown_with_a_certificate(tmp_path, capsys):
    write_certificate(tmp_path)
    chain, key = (tmp_path / name for name in FILES)
    named = [f"server.tls_certificate={chain}", f"server.tls_private_key={key}"]
    assigned = [word for each in (*named, f"server.api_key={SECRET}") for word in ("--set", each)]
    assert run(["serve", "mock", "--check", "--host", "0.0.0.0", "--port", "0", *assigned]) == 0
    assert "server.tls_certificate" not in capsys.readouterr().err
