"""The parts of uvicorn that the server uses exist, or the server does not start.

``test_limits`` and ``test_disconnect`` test the behaviour of connections. These tests name what is
missing if a newer uvicorn breaks them. They read the names from the server's own source.
"""

import ast
import inspect
import textwrap
import tomllib
from pathlib import Path

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from vlmkit.errors import ConfigError
from vlmkit_server.http.connection import OVERRIDDEN, Connection, check_uvicorn
from vlmkit_server.run import Server, serve

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
PAIRS = [(Connection, HttpToolsProtocol), (Server, uvicorn.Server)]


def names_in(cls, owner="self"):
    """Return the attributes of a variable that a class sets and reads; ``super()`` is ``self``."""
    assigned, read, owners = set(), set(), {owner, "super"} if owner == "self" else {owner}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls)))):
        if isinstance(node, ast.Attribute):
            target = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(target, ast.Name) and target.id in owners:
                (read if isinstance(node.ctx, ast.Load) else assigned).add(node.attr)
    return assigned, read


def defined_names(cls):
    """Return all names that a class and its bases define or set on themselves."""
    sources = [base for base in cls.__mro__ if base.__module__.startswith(("uvicorn", __name__))]
    return set(dir(cls)).union(*(names_in(base)[0] for base in sources))


def missing_names(ours, theirs):
    """Return what a subclass needs from its base and does not find there."""
    assigned, read = names_in(ours)
    own = assigned | set(vars(ours)) | set(getattr(ours, "__annotations__", ()))
    gone = {f"{theirs.__name__}.{name} is gone" for name in read - own - defined_names(theirs)}
    for name, method in vars(ours).items():
        if not inspect.isfunction(method) or name == "__init__":
            continue
        calls_super = f"super().{name}(" in inspect.getsource(method)
        base = getattr(theirs, name, None)
        if base is None and calls_super:
            gone.add(f"{theirs.__name__}.{name} is gone")
        elif base is not None and arguments(theirs, name) != (taken := arguments(ours, name)):
            needed = arguments(theirs, name)
            gone.add(f"{theirs.__name__}.{name} takes {needed}, ours {taken}")
    return gone


def arguments(cls, name):
    """Return a method's arguments from its source, since sse-starlette replaces one of uvicorn's
    methods."""
    base = next(base for base in cls.__mro__ if name in vars(base))
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return [each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)]
    return []


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda cls: cls.__name__)
def test_uvicorn_has_the_methods_that_we_override_with_the_same_arguments(ours, theirs):
    assert not missing_names(ours, theirs)


def test_uvicorns_request_cycle_has_the_attributes_that_we_use():
    assigned, read = names_in(Connection, "cycle")
    assert assigned | read == {
        *("chunked_encoding", "disconnected", "expected_content_length", "keep_alive"),
        *("message_event", "more_body", "response_complete", "scope", "send", "transport"),
    }
    assert assigned | read <= defined_names(RequestResponseCycle)


class Renamed:
    """A base class as a newer version may have it."""

    def __init__(self):
        self.headers, self.loop, self.transport, self.cycle = [], None, None, None
        self.client = self.scheme = self.flow = None

    def connection_made(self, transport): ...
    def data_received(self, data): ...
    def connection_lost(self, exc): ...
    def on_message_begin(self): ...
    def on_url(self, url): ...
    def on_header_pair(self, name, value): ...
    def on_headers_complete(self): ...
    def on_message_complete(self): ...
    def on_response_complete(self): ...
    def pause_writing(self): ...
    def resume_writing(self): ...
    def send_400_response(self, msg, status): ...


def test_a_name_missing_in_a_newer_uvicorn_is_reported():
    assert missing_names(Connection, Renamed) == {
        "Renamed.on_header is gone",
        "Renamed.pipeline is gone",
        "Renamed.send_400_response takes ['self', 'msg', 'status'], ours ['self', 'msg']",
    }


def test_a_server_does_not_start_on_a_uvicorn_without_a_method_that_it_overrides(monkeypatch):
    check_uvicorn()
    with pytest.raises(ConfigError, match="does not have on_header, where"):
        check_uvicorn(Renamed)

    monkeypatch.delattr(HttpToolsProtocol, "on_url")
    with pytest.raises(ConfigError, match="on_url"):
        serve({})


def test_every_overridden_method_of_the_protocol_is_checked_at_the_start():
    own = {name for name, value in vars(Connection).items() if inspect.isfunction(value)}
    assert set(OVERRIDDEN) == own & set(dir(HttpToolsProtocol)) - {"__init__"}


def test_the_range_of_uvicorn_contains_several_minor_versions_and_the_installed_one():
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    stated = [Requirement(text) for text in project["dependencies"]]
    (specifier,) = (r.specifier for r in stated if r.name == "uvicorn")
    assert all(specifier.contains(version) for version in (uvicorn.__version__, "0.53.0", "0.99"))
    assert not specifier.contains("1.0")
