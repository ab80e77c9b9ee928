"""``GET /``: a page about this server and its API, for people who open its address in a browser.

Other clients get a line of text: those of Ollama ask for it to find out whether a server is there.

Where keys are required, a browser sends none: the page then shows no model and no state.
"""

import json
import shlex
from collections.abc import Iterator
from typing import Any

from litestar import Controller, MediaType, Request, Response, route
from litestar.di import NamedDependency

from vlmkit_server.exchange.service import Service
from vlmkit_server.fleet.model_handle import ModelHandle
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.http.page import (
    HTML,
    accepts_html,
    around,
    element,
    link,
    page,
    page_response,
    table,
)

_PAGE = Operation(bytes, media_type=HTML, access="open")
_LINE = b"vlmkit is running\n"
_WHAT = "A vlmkit server: vision-language models behind the APIs of OpenAI and Anthropic."
_KEYS = (
    "This server requires API keys. Clients send one in the header "
    "“authorization: Bearer KEY” or “x-api-key: KEY”; the server's operator has them."
)
_LINKS = {
    "/docs": "the API reference",
    "/openapi.json": "the same for programs",
    "/v1/models": "its models",
    "/v1/capabilities": "what each model supports",
    "/readyz": "whether it accepts requests now",
    "/healthz": "whether it is healthy",
}


class HomeController(Controller):
    """The home page, for people."""

    @route("/", http_method=READ, operation=_PAGE)
    async def show(
        self, request: Request[Any, Any, Any], service: NamedDependency[Service]
    ) -> Response[bytes]:
        """Show a page about this server, or a line of text to clients that accept no text/html."""
        if not accepts_html(request.headers.get("accept", "")):
            return Response(_LINE, media_type=MediaType.TEXT)
        return page_response(page("vlmkit", _body(service, str(request.base_url))))


def _body(service: Service, url: str) -> Iterator[str]:
    yield element("p", _WHAT)
    if service.keys is not None:
        yield element("p", _KEYS)
    else:
        models = list(service.models.values())
        rows = [[element("code", each.name), element("span", _state(each))] for each in models]
        yield table(("model", "state"), rows)
        if models:
            yield element("p", "Ask it, for example, by")
            yield element("pre", _example(f"{url.rstrip('/')}/v1", models[0].name))
    rows = [[link(path), element("span", what)] for path, what in _LINKS.items()]
    yield around("h2", "Pages")
    yield table(("path", "shows"), rows)


def _state(model: ModelHandle) -> str:
    facts = model.facts
    return f"{model.state}; takes {', '.join(facts.modalities)}" if facts else model.state


def _example(url: str, model: str) -> str:
    """Return a shell command."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    address = shlex.quote(f"{url}/chat/completions")
    return (
        f"curl {address} -H 'content-type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps(body))}"
    )
