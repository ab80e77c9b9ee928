"""Builds HTML pages for browsers. A page loads nothing, runs no script and is not cached."""

import base64
import hashlib
from collections.abc import Iterable, Sequence as Seq
from html import escape

from litestar import Response

HTML = "text/html"
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}"
    "code,pre{font:14px/1.5 ui-monospace,monospace}"
    "pre{overflow-x:auto;padding:.5rem;border:1px solid #8888}"
    "table{border-collapse:collapse}"
    "td,th{text-align:left;vertical-align:top;padding:.1rem 1rem .1rem 0}"
    "h2{border-top:1px solid #8888;padding-top:1rem}"
)
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def page(title: str, body: Iterable[str]) -> bytes:
    """Return a complete HTML page.

    Args:
        title: plain text.
        body: HTML elements, from the other functions of this module.
    """
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{''.join(body)}</body></html>"
    )
    return text.encode()


def page_response(content: bytes) -> Response[bytes]:
    """Return the response that shows a page."""
    return Response(content, headers=_HEADERS | {"content-type": f"{HTML}; charset=utf-8"})


def element(name: str, text: str, **attributes: str) -> str:
    """Return an element that contains plain text."""
    return f"{_opened(name, attributes)}{escape(text)}</{name}>"


def around(name: str, *inner: str, **attributes: str) -> str:
    """Return an element that contains HTML."""
    return f"{_opened(name, attributes)}{''.join(inner)}</{name}>"


def link(target: str, text: str = "") -> str:
    """Return a link within this server."""
    return element("a", text or target, href=target)


def table(header: Seq[str], rows: Iterable[Seq[str]]) -> str:
    """Return an HTML table; the header cells are plain text."""
    head = around("tr", *(element("th", each) for each in header))
    return around("table", head, *(around("tr", *(around("td", c) for c in row)) for row in rows))


def accepts_html(accept: str) -> bool:
    """Tell whether a client names HTML in its Accept header, as browsers do; ``*/*`` does not."""
    return HTML in accept.lower()


def _opened(name: str, attributes: dict[str, str]) -> str:
    written = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>"
