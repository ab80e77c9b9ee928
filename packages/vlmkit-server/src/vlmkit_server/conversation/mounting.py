"""Turns the routes of APIs into route handlers of the HTTP framework, and lists their bodies."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from litestar import Controller, Request, Router, route as litestar_route
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, Scope

from vlmkit.errors import PluginError, VlmkitError
from vlmkit.kit.one_line import named
from vlmkit.running.faults.attribution import ComponentNames
from vlmkit.settings.scope import SCOPES
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.http.errors import API_OPTION, Fault, error_handlers, openai_error
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.interfaces.api import Api, Method, Route

_SCOPES = ("open", "key", *SCOPES)
_SCOPES_HINT = f"a scope is one of {', '.join(_SCOPES)}"
_HINT = "vlmkit_server.interfaces.api describes routes; `vlmkit --debug` shows where"
RouteHandler = HTTPRouteHandler | Router


class MountedApis:
    """The routes of all APIs of a server.

    It is no dataclass: the framework would convert the fields of one for every request.

    Attributes:
        handlers: the route handlers for the framework.
        routes: the routes that answer bodies, in the order of their APIs.
    """

    def __init__(self) -> None:
        self.handlers: list[RouteHandler] = []
        self.routes: list[Route] = []
        self._owners: dict[str, Api] = {}  # by path
        self._families: dict[str, Api | None] = {}  # by prefix; None where types of API differ
        self._max_depth = 0

    @property
    def has_start_page(self) -> bool:
        """Whether an API has the route ``GET /``."""
        return "/" in self._owners

    def add_path(self, path: str, api: Api) -> None:
        """Record that a route belongs to an API, for errors without a route."""
        self._owners[path] = api
        segments = path.partition("{")[0].strip("/").split("/")
        self._max_depth = max(self._max_depth, len(segments))
        for depth in range(1, len(segments) + 1):
            prefix = "/".join(segments[:depth])
            if type(self._families.setdefault(prefix, api)) is not type(api):
                self._families[prefix] = None

    def write_error(self, fault: Fault, status: int, scope: Scope) -> bytes:
        """Encode an error without a route in the shape of the API to whose paths its path belongs.

        It has OpenAI's shape if it belongs to no API, or to several types.
        """
        if (api := self._api_of(scope["path"])) is None:
            return openai_error(fault, status, scope)
        return api.write_error(fault, status, scope)

    def _api_of(self, path: str) -> Api | None:
        """Return the API that has a path, or all paths that begin like it."""
        if path in self._owners:
            return self._owners[path]
        segments = path.strip("/").split("/", self._max_depth)[: self._max_depth]
        prefixes = ("/".join(segments[:depth]) for depth in range(len(segments), 0, -1))
        return next((self._families[each] for each in prefixes if each in self._families), None)


def mounted(apis: Mapping[str, Api], host: Host, names: ComponentNames) -> MountedApis:
    """Return the routes of APIs.

    Args:
        apis: the APIs, each by its name.
        host: the server's parts that they may use.
        names: names the component that provides each API, for errors.

    Raises:
        PluginError: an API raises an error or has an invalid route, or two APIs have the same one.
    """
    found, owners = MountedApis(), dict[tuple[str, str], str]()
    for name, api in apis.items():
        who = names.of("api", name)
        for each in _routes_of(api, host, who):
            for method, path in _paths(each, who):
                owner = owners.setdefault((method, path), who)
                if owner != who:
                    raise PluginError(
                        f"{owner} and {who} both have the route {method} {path}",
                        hint="leave one of them out of apis.use",
                    )
                found.add_path(path, api)
            if isinstance(each, Route):
                found.routes.append(each)
                found.handlers.append(route_handler(each, api, host, who))
            else:
                found.handlers.append(Router("/", route_handlers=[each], opt={API_OPTION: who}))
    return found


def route_handler(route: Route, api: Api, host: Host, who: str) -> HTTPRouteHandler:
    """Return the framework's handler of a route.

    Args:
        route: the route.
        api: the API that has it.
        host: the server's parts that it may use.
        who: the name of the API and its distribution, for the log.
    """

    async def handle(request: Request[Any, Any, Any]) -> ASGIApp:
        return Exchange(
            request,
            host,
            route.reader,
            route.handler,
            buffers_streams=route.buffers_streams,
            decodes=route.decodes,
            needs_json_type=route.needs_json_type,
        )

    handle.__doc__ = route.handler.__doc__
    operation = Operation(
        route.answer,
        route.reader.shape if route.reader else None,
        route.event,
        has_timing=route.has_timing,
        error=api.error_type,
        links=route.links,
        access=route.scope,
        stream_type=route.stream_type,
        media_type=route.media_type,
    )
    decorate = litestar_route(
        route.path,
        http_method=READ if route.method == "GET" else [route.method],
        status_code=200,
        operation=operation,
        opt={API_OPTION: who},
        exception_handlers=error_handlers(api.write_error),
    )
    return decorate(handle)


def _routes_of(api: Api, host: Host, who: str) -> Sequence[Route | type[Controller]]:
    """Return the routes of an API.

    Raises:
        PluginError: it raised an error, or one of them is invalid.
    """
    try:
        routes = api.routes(host)
    except VlmkitError:
        raise
    except Exception as error:
        raise PluginError(f"routes() of {who} raised {named(error)}", hint=_HINT) from error
    if not isinstance(routes, list | tuple):
        raise PluginError(f"routes() of {who} did not return a list of routes", hint=_HINT)
    for each in routes:
        if isinstance(each, Route):
            _check(each, who)
        elif not (isinstance(each, type) and issubclass(each, Controller)):
            raise PluginError(
                f"routes() of {who} returned a {type(each).__name__}, which is no route",
                hint=_HINT,
            )
    return routes


def _check(route: Route, who: str) -> None:
    """Check a route, whose class checks no types.

    Raises:
        PluginError: it is invalid.
    """
    subject = f"{who} has the route {route.path}"
    if not str(route.path).startswith("/"):
        raise PluginError(f"{subject}, which does not start with a slash", hint=_HINT)
    if not route.scope:
        raise PluginError(f"{subject} without a scope", hint=_SCOPES_HINT)
    if route.scope not in _SCOPES:
        raise PluginError(f"{subject} with the unknown scope {route.scope!r}", hint=_SCOPES_HINT)
    if route.method not in get_args(Method):
        raise PluginError(f"{subject} with the method {route.method!r}", hint=_HINT)
    if route.reader is not None and not hasattr(route.reader, "shape"):
        raise PluginError(f"{subject}, whose reader is no BodyReader", hint=_HINT)
    if not callable(route.handler):
        raise PluginError(f"{subject}, whose handler is no function", hint=_HINT)


def _paths(each: Any, who: str) -> Iterable[tuple[str, str]]:
    """Yield the methods and paths of a route or a controller.

    Raises:
        PluginError: it states no scope.
    """
    if isinstance(each, Route):
        yield each.method, each.path
        return
    for handler in vars(each).values():
        if not isinstance(handler, HTTPRouteHandler):
            continue
        paths = [f"{each.path}{path}".rstrip("/") for path in handler.paths]
        if not isinstance(handler.opt.get("operation"), Operation):
            raise PluginError(f"{who} has the route {paths[0]} without a scope")
        yield from ((method, path) for method in handler.http_methods for path in paths)
