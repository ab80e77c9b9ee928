"""The server's plugin hooks, and the kinds and config tables that the server owns.

It imports nothing heavy; the build functions do.
"""

import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Any

from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import Objection
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_server.apis.scores.settings import ScoresSettings
from vlmkit_server.interfaces.kinds import API, MONITOR, TOOL_SOURCE
from vlmkit_server.settings.server import ServerSettings

if TYPE_CHECKING:
    import click

    from vlmkit_server.interfaces.api import Api

VLMKIT_API = (1, 0)
VLMKIT_KINDS = (API, TOOL_SOURCE, MONITOR)
VLMKIT_TABLES = {
    "apis": API,
    "tool_sources": TOOL_SOURCE,
    "monitors": MONITOR,
    "server": ServerSettings,
}


REQUIRED = ("litestar", "msgspec", "multipart", "uvicorn")


def _why_not() -> str | None:
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return Objection(
        f"{' and '.join(missing)}, which vlmkit-server needs, cannot be imported",
        hint=install_command(*missing),
    )


def _build_serve(_: BuildContext) -> "click.Command":
    from vlmkit_server.commands.serve import serve

    return serve


def _build_keys(_: BuildContext) -> "click.Command":
    from vlmkit_server.commands.keys import keys

    return keys


def _build_batch(_: BuildContext) -> "click.Command":
    from vlmkit_server.commands.batch import batch

    return batch


APIS = {
    "openai-chat": "OpenAI's chat completions.",
    "openai-completions": "OpenAI's completions of plain texts.",
    "openai-embeddings": "OpenAI's embeddings.",
    "anthropic-messages": "Anthropic's messages.",
    "openai-responses": "OpenAI's Responses API.",
    "tokens": "Tokens of prompts, generation from tokens, and SageMaker's /invocations.",
    "files": "Uploaded files, in OpenAI's and Anthropic's shapes.",
    "batches": "Batches of requests, in OpenAI's and Anthropic's shapes.",
}


def _build_api(_: BuildContext, name: str) -> "Api":
    from vlmkit_server.apis.builtin import APIS as BUILT

    return BUILT[name]


def _build_scores(context: BuildContext) -> "Api":
    from vlmkit_server.apis.scores.route import ScoresApi

    return ScoresApi(context.settings)


@hookimpl
def vlmkit_register_apis(registry: "Registry[Api]") -> None:
    """Register the APIs of this distribution."""
    for name, description in APIS.items():
        registry.add(name, partial(_build_api, name=name), description=description)
    registry.add(
        "scores",
        _build_scores,
        settings=ScoresSettings,
        description="Rankings and scores of documents, in Jina's, Cohere's and vLLM's shapes.",
    )


@hookimpl
def vlmkit_register_commands(registry: Registry[Any]) -> None:
    """Register ``vlmkit serve``, ``vlmkit batch`` and ``vlmkit keys``."""
    registry.add(
        "serve",
        _build_serve,
        why_not=_why_not,
        description="Serve MODELs, or those of the config, over HTTP.",
    )
    registry.add(
        "batch",
        _build_batch,
        why_not=_why_not,
        description="Answer a file of requests without a server.",
    )
    registry.add(
        "keys", _build_keys, why_not=_why_not, description="Create, list and revoke API keys."
    )
