"""The kinds that the server owns are checked as the core's are, and their table is the config's."""

import asyncio
import functools
from types import SimpleNamespace
from typing import Any

import pytest

from vlmkit.errors import PluginError
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_server.plugin import VLMKIT_KINDS


async def describe(name: str) -> Any: ...


async def call(name: str, arguments: dict[str, Any], at_most: int) -> Any: ...


@functools.wraps(describe)
def counted(name: str) -> Any:
    return describe(name)


def promised(name: str) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(describe(name))


def registry_with(described: Any) -> Registry[Any]:
    """A registry of sources, one of which describes its tools in a certain way."""

    async def aclose() -> None: ...

    registry = Registries("my-plugin", VLMKIT_KINDS).tool_sources
    source = SimpleNamespace(names=frozenset({"a"}), describe=described, call=call, aclose=aclose)
    registry.add("tools", lambda _: source)
    return registry


@pytest.mark.parametrize("own", [describe, counted, promised, functools.partial(describe)])
def test_what_is_awaited_may_return_an_awaitable_in_other_ways(own: Any) -> None:
    assert registry_with(own).build("tools", {}, BuildContext())


def test_what_is_awaited_and_returns_no_awaitable_is_refused() -> None:
    with pytest.raises(PluginError, match="'describe' is no async function, but is waited for"):
        registry_with(lambda name: {}).build("tools", {}, BuildContext())
