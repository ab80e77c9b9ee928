"""The tools that the server runs itself, of all sources, by the names that requests ask for.

How a conversation goes on with what they return: :mod:`vlmkit.server.chat.rounds`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence as Seq
from types import MappingProxyType
from typing import Any

from vlmkit.ask.message import ImagePart, TextPart
from vlmkit.ask.tool_call import ToolCallPart
from vlmkit.errors import ConfigError, RequestError, VlmkitError
from vlmkit.seams.tool_source import ToolSource
from vlmkit.server.http.errors import Unavailable
from vlmkit.server.together import together
from vlmkit.settings.images import ImageLimits

log = logging.getLogger(__name__)

MAX_AT_ONCE = 4


class Toolbox:
    """Runs tools.

    Args:
        sources: who has them, by the names of providers.

    Raises:
        ConfigError: two of them have a tool of one name.
    """

    def __init__(self, sources: Mapping[str, ToolSource] = MappingProxyType({})) -> None:
        self._sources = tuple(sources.values())
        self._by_name: dict[str, ToolSource] = {}
        for provider, source in sources.items():
            for name in source.names:
                if name in self._by_name:
                    raise ConfigError(
                        f"tool {name!r} of {provider!r} has the name of another's",
                        hint="leave one of them out",
                    )
                self._by_name[name] = source

    @property
    def names(self) -> tuple[str, ...]:
        """The tools that a request may ask for."""
        return tuple(sorted(self._by_name))

    async def described(self, names: Iterable[str]) -> list[Mapping[str, Any]]:
        """Return the definitions of some tools.

        Raises:
            RequestError: there is no such tool.
            Unavailable: a definition cannot be had now.
        """
        asked = list(dict.fromkeys(names))
        for name in asked:
            if name not in self._by_name:
                raise RequestError(
                    "server_tools names a tool that this server does not have",
                    param="server_tools",
                    hint="GET /v1/capabilities lists them",
                )
        return await together(self._described, asked, MAX_AT_ONCE)

    async def result(
        self, call: ToolCallPart, asked: Iterable[str], limits: ImageLimits
    ) -> Seq[TextPart | ImagePart]:
        """Run a call that a model wrote, and return what it is to read of it, errors included.

        Args:
            call: may be anything.
            asked: the tools that the request asked for, of which this must be one.
            limits: which images are refused.
        """
        if call.name not in asked:
            return [TextPart("error: there is no such tool")]
        try:
            return await self._by_name[call.name].call(call.name, call.parsed(), limits)
        except VlmkitError as error:
            log.info("tool %r failed: %s", call.name, error)
            return [TextPart(f"error: {error}")]
        except Exception:
            log.exception("tool %r failed", call.name)
            return [TextPart("error: the tool failed")]

    async def aclose(self) -> None:
        """End the sources, whether or not another one can be ended."""
        for source in self._sources:
            try:
                await source.aclose()
            except Exception:
                log.exception("a source of tools could not be closed")

    async def _described(self, name: str) -> Mapping[str, Any]:
        try:
            return await self._by_name[name].describe(name)
        except Exception as error:
            log.warning("tool %r cannot be had: %s", name, error)
            raise Unavailable("a tool of the server cannot be had", code="tool_failed") from error
