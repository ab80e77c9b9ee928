"""The tools that the server runs itself, of all sources, by the names that requests ask for.

How a conversation goes on with what they return: :mod:`vlmkit_server.apis.openai_chat.tool_loop`.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence as Seq
from types import MappingProxyType
from typing import Any, NamedTuple

from vlmkit.errors import ConfigError, RequestError, VlmkitError
from vlmkit.kit.traces import trace_of
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.settings.images import ImageLimits
from vlmkit.types.message import ImagePart, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.gather import gather
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.interfaces.tool_source import ToolSource

log = logging.getLogger(__name__)

MAX_AT_ONCE = 4


class ToolResult(NamedTuple):
    """What came of a call.

    Attributes:
        parts: what the model is to read of it.
        is_error: whether the tool failed.
    """

    parts: Seq[TextPart | ImagePart]
    is_error: bool = False


def failure(problem: str) -> ToolResult:
    """Return what a model is told of a call that came to nothing."""
    return ToolResult([TextPart(f"error: {problem}")], is_error=True)


class Toolbox:
    """Runs tools.

    Args:
        sources: who has them, by the names of providers.
        component_names: who made the sources.

    Raises:
        ConfigError: two of them have a tool of one name.
    """

    def __init__(
        self,
        sources: Mapping[str, ToolSource] = MappingProxyType({}),
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._sources = {
            component_names.of("tool_source", name): each for name, each in sources.items()
        }
        self._by_name: dict[str, ToolSource] = {}
        self._whose: dict[str, str] = {}
        for provider, source in sources.items():
            for name in source.names:
                if name in self._by_name:
                    raise ConfigError(
                        f"tool {name!r} of {provider!r} has the name of another's",
                        hint="leave one of them out",
                    )
                self._by_name[name] = source
                self._whose[name] = component_names.of("tool_source", provider)

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
        return await gather(self._described, asked, MAX_AT_ONCE)

    async def result(
        self, call: ToolCallPart, asked: Iterable[str], limits: ImageLimits, request_id: str
    ) -> ToolResult:
        """Run a call that a model wrote, and return what it is to read of it, errors included.

        The log says who called what, and how that ended; never what was asked or returned.

        Args:
            call: may be anything.
            asked: the tools that the request asked for, of which this must be one.
            limits: which images are refused.
            request_id: what the request is called.
        """
        if call.name not in asked:
            log.info("request %s: a call of a tool that the request does not list", request_id)
            return failure("there is no such tool")
        started = time.perf_counter()
        outcome = "cancelled"
        try:
            parts = await self._by_name[call.name].call(call.name, call.parsed(), limits)
            outcome = "ok"
            return ToolResult(parts)
        except VlmkitError as error:
            outcome = f"error: {type(error).__name__}"
            return failure(str(error))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            outcome = f"error: {type(error).__name__}"
            # Its text may tell arguments.
            whose, where = self._whose[call.name], trace_of(error)
            log.error("tool %r of %s failed:\n%s", call.name, whose, where)  # noqa: TRY400
            return failure("the tool failed")
        finally:
            took_s = time.perf_counter() - started
            log.info(
                "request %s: tool %r, %.3f s, %s", request_id, call.name, took_s, outcome
            )  # fmt: skip

    async def aclose(self) -> None:
        """End the sources, whether or not another one can be ended."""
        for who, source in self._sources.items():
            try:
                await source.aclose()
            except Exception:
                log.exception("%s could not be closed", who)

    async def _described(self, name: str) -> Mapping[str, Any]:
        try:
            return await self._by_name[name].describe(name)
        except Exception as error:
            whose, where = self._whose[name], trace_of(error)
            log.warning("tool %r of %s cannot be described:\n%s", name, whose, where)
            raise Unavailable("a tool of the server cannot be had", code="tool_failed") from error
