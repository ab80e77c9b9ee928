"""The tools of all sources that the server runs itself, by name.

:mod:`vlmkit_server.conversation.tool_loop` continues the conversation with their results.
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
    """The result of a call.

    Attributes:
        parts: the content for the model.
        is_error: whether the call failed.
    """

    parts: Seq[TextPart | ImagePart]
    is_error: bool = False


def failure(problem: str) -> ToolResult:
    """Return the result of a call that failed."""
    return ToolResult([TextPart(f"error: {problem}")], is_error=True)


class Toolbox:
    """Runs tools.

    Args:
        sources: the tool sources by the names of their providers.
        component_names: names the providers in the log.

    Raises:
        ConfigError: two sources have a tool with the same name.
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
        self._providers: dict[str, str] = {}
        for provider, source in sources.items():
            for name in source.names:
                if name in self._by_name:
                    raise ConfigError(
                        f"tool {name!r} of {provider!r} has the name of another's",
                        hint="leave one of them out",
                    )
                self._by_name[name] = source
                self._providers[name] = component_names.of("tool_source", provider)

    @property
    def names(self) -> tuple[str, ...]:
        """The tools that a request may use."""
        return tuple(sorted(self._by_name))

    async def described(self, names: Iterable[str]) -> list[Mapping[str, Any]]:
        """Return the definitions of some tools.

        Raises:
            RequestError: there is no such tool.
            Unavailable: a definition is unavailable now.
        """
        requested = list(dict.fromkeys(names))
        for name in requested:
            if name not in self._by_name:
                raise RequestError(
                    "server_tools names a tool that this server does not have",
                    param="server_tools",
                    hint="GET /v1/capabilities lists them",
                )
        return await gather(self._described, requested, MAX_AT_ONCE)

    async def result(
        self, call: ToolCallPart, allowed: Iterable[str], limits: ImageLimits, request_id: str
    ) -> ToolResult:
        """Run a call that a model wrote, and return its result, errors included.

        The log names the request, the tool and the outcome; never arguments or results.

        Args:
            call: any call.
            allowed: the tools that the request lists; the call must name one of them.
            limits: limits for images.
            request_id: the request's id.
        """
        if call.name not in allowed:
            log.info(
                "request %s: the model called a tool that the request does not list", request_id
            )
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
            # The error's text may contain arguments.
            provider, trace = self._providers[call.name], trace_of(error)
            log.error("tool %r of %s failed:\n%s", call.name, provider, trace)  # noqa: TRY400
            return failure("the tool failed")
        finally:
            took_s = time.perf_counter() - started
            log.info(
                "request %s: tool %r, %.3f s, %s", request_id, call.name, took_s, outcome
            )  # fmt: skip

    async def aclose(self) -> None:
        """Close all sources, even if one cannot be closed."""
        for provider, source in self._sources.items():
            try:
                await source.aclose()
            except Exception:
                log.exception("%s could not be closed", provider)

    async def _described(self, name: str) -> Mapping[str, Any]:
        try:
            return await self._by_name[name].describe(name)
        except Exception as error:
            provider, trace = self._providers[name], trace_of(error)
            log.warning("tool %r of %s cannot be described:\n%s", name, provider, trace)
            raise Unavailable("a tool of the server cannot be had", code="tool_failed") from error
