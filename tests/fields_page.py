"""Writes ``docs/reference/fields.md``: the table of request fields and their use by each API.

``nox -s reference`` renews it; a test fails when it is out of date.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from vlmkit_server.app import create_app
from vlmkit_server.operate.field_actions import actions
from vlmkit_server.wire.row import Row
from vlmkit_server.wire.table import SECTIONS, TABLE

PATH = Path(__file__).parents[1] / "docs/reference/fields.md"
APIS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
}
READERS = {route.path: route.reader for route in create_app({}).state.apis.routes}
HEAD = f"""# Fields of requests

Fields that clients of OpenAI, Anthropic, vLLM, SGLang, llama.cpp, Mistral, LiteLLM, Ollama and
others send, and what is done about each. {len(TABLE)} names; the server reads the same table.
Made by `nox -s reference`.

- *implemented*: the [HTTP API](http.md) has its bounds.
- *alias of* another field: the same value under another name. Both with different values are a
  400.
- *no effect*: the answer is the same with it. The header `x-vlmkit-ignored` names it, unless it
  is a label.
- *rejected*: a 400 that names it, with the kind of value received and the values that are
  accepted, because the answer would be another one. The last column says what to send instead.

A neutral value changes nothing and is accepted everywhere without a report: `null`, `[]` and
`{{}}`, and those in the third column, which are the defaults of the servers that have the field.
An API that is not named rejects a field that others implement, unless it answers nothing that the
field could change. Fields of `sampling_params` of `/inference/v1/generate` are treated as a
chat's, without aliases.

Any other name is reported. One that differs by a letter, a sign or capitals from a field that the
API takes is rejected with the right name (`did you mean max_tokens?`): a misspelt field would
change nothing, without an error.

A `temperature` may be 0 to 2, as OpenAI and vLLM have it; llama.cpp and SGLang take larger ones,
which are rejected."""


def page() -> str:
    """Return the page."""
    return "\n\n".join([HEAD, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    for title, rows in SECTIONS.items():
        lines = "\n".join(_line(row) for row in rows)
        yield f"## {title}\n\n| field | of | neutral | here | |\n|---|---|---|---|---|\n{lines}"


def _line(row: Row) -> str:
    neutral = ", ".join(f"`{_json(value)}`" for value in row.neutral)
    reason = row.reason.replace("|", "\\|")
    return f"| `{row.field}` | {row.origins} | {neutral} | {_treatment(row)} | {reason} |"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _treatment(row: Row) -> str:
    """Return what the APIs do about a field; those that do the same are named together."""
    found: dict[str, list[str]] = {}
    for api, path in APIS.items():
        action = actions(READERS[path]).get(row.field)
        if action == "alias":
            found.setdefault(f"alias of `{READERS[path].known.aliases[row.field]}`", []).append(api)
        elif action is not None and not (api == "embeddings" and action == "no effect"):
            found.setdefault(action, []).append(api)
    if not found:
        return row.action
    if len(found) == 1 and len(*found.values()) >= len(APIS) - 1:
        return next(iter(found))
    names = {what: apis for what, apis in found.items() if what != "rejected"} or found
    text = "; ".join(f"{what}: {', '.join(apis)}" for what, apis in names.items())
    return f"{text}; else rejected" if "rejected" in found and names is not found else text


if __name__ == "__main__":
    PATH.write_text(page())
