"""The component kinds of the server: protocol checks, and the names in the config."""

import asyncio
import functools
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from vlmkit.config.plugin_loading import load_plugins
from vlmkit.errors import PluginError
from vlmkit.kit.objection import hint_of
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit.settings.plugins import PluginSettings
from vlmkit_server.plugin import VLMKIT_KINDS


def test_the_serve_command_names_its_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = load_plugins(PluginSettings(only=())).commands
    assert commands.get("serve").objection() is None
    find = importlib.util.find_spec
    missing = {"litestar", "multipart"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n in missing else find(n))
    objection = commands.get("serve").objection()
    assert objection == "litestar and multipart, which vlmkit-server needs, cannot be imported"
    assert hint_of(objection).endswith("litestar multipart")


async def describe(name: str) -> Any: ...


async def call(name: str, arguments: dict[str, Any], at_most: int) -> Any: ...


@functools.wraps(describe)
def counted(name: str) -> Any:
    return describe(name)


def promised(name: str) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(describe(name))


def registry_with(described: Any) -> Registry[Any]:
    """Return a registry with a tool source that has the given ``describe``."""

    async def aclose() -> None: ...

    registry = Registries("my-plugin", VLMKIT_KINDS).tool_sources
    source = SimpleNamespace(names=frozenset({"a"}), describe=described, call=call, aclose=aclose)
    registry.add("tools", lambda _: source)
    return registry


@pytest.mark.parametrize("own", [describe, counted, promised, functools.partial(describe)])
def test_awaited_methods_may_be_any_callable_that_returns_an_awaitable(own: Any) -> None:
    assert registry_with(own).build("tools", {}, BuildContext())


def test_an_awaited_method_that_is_not_async_is_refused() -> None:
    with pytest.raises(PluginError, match="'describe' is not an async function, but it is awaited"):
        registry_with(lambda name: {}).build("tools", {}, BuildContext())
