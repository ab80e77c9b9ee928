"""The addresses on which a server may listen, and the defaults of public addresses."""

import socket

import pytest

from vlmkit.errors import ConfigError
from vlmkit_server.run import serve
from vlmkit_server.settings.server import ServerSettings, is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_a_public_address_without_a_key_is_refused(host):
    with pytest.raises(ConfigError, match=r"can be reached by other machines") as caught:
        serve({}, ServerSettings(host=host))
    assert "allow_public_without_key" in caught.value.hint


def test_a_port_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"host '127.0.0.1', port {port} cannot be listened"
        ) as caught:
            serve({}, ServerSettings(port=port))
    assert str(caught.value).endswith(": Address already in use")


def test_only_local_addresses_are_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "localhost.example"]))


def test_the_settings_module_imports_no_server_library():
    import subprocess
    import sys

    program = (
        "import sys, vlmkit_server.settings.server;"
        "assert not {'litestar', 'uvicorn', 'httpx2'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "models.example.com"])
def test_public_addresses_have_stricter_defaults_that_settings_override(host):
    public = ServerSettings(host=host)
    assert (public.renderers, public.timeout_s) == (2, 600.0)
    for given in (ServerSettings(), ServerSettings(host="::1")):
        assert (given.renderers, given.timeout_s) == (0, 3600.0)
    for each in (host, "127.0.0.1"):
        stated = ServerSettings(host=each, num_renderers=0, request_timeout_s=7200.0)
        assert (stated.renderers, stated.timeout_s) == (0, 7200.0)
        assert ServerSettings(host=each, num_renderers=3).renderers == 3
