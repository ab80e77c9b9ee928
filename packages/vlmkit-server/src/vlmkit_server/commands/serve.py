"""``vlmkit serve``: OpenAI's API in front of one or more models."""

import importlib.metadata
import json
import logging
import os
import shlex
import threading
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vlmkit.cli import options, output
from vlmkit.errors import VlmkitError
from vlmkit.kit import heap
from vlmkit.plugins.hookspecs import PROJECT

if TYPE_CHECKING:
    from vlmkit.config import Config
    from vlmkit.plugins.loader import Plugins
    from vlmkit.running.faults.attribution import ComponentNames
    from vlmkit_server.fleet.model_spec import ModelSpec
    from vlmkit_server.interfaces.api import Api
    from vlmkit_server.interfaces.monitor import Monitor
    from vlmkit_server.interfaces.tool_source import ToolSource
    from vlmkit_server.settings.server import ServerSettings

log = logging.getLogger(__name__)

WORKERS = ("vlmkit-load", "vlmkit-prompt", "vlmkit-file", "vlmkit-text", "vlmkit-constraint")

CLIENT_KEY = "VLM_API_KEY"
"""A shell variable of clients; a name that begins with VLMKIT_ would be read as a setting."""
EXAMPLE = """\
ready. Open {page} in a browser.{with_key}, for example, by

curl {chat} -H 'content-type: application/json'{header} \\
  -d {body}

{imports}from openai import OpenAI
client = OpenAI(base_url="{url}", api_key={key})
"""


LIMITLESS = {
    "key": "keys without limits of their own are unlimited",
    "address": "an address may send any number of requests",
}


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "--host",
    metavar="ADDRESS",
    show_default="127.0.0.1",
    help="Address to listen on: the setting server.host.",
)
@click.option(
    "--port",
    metavar="NUMBER",
    show_default="8000",
    help="Port to listen on: server.port; 0 for a free one.",
)
@click.option(
    "--log-format",
    metavar="FORMAT",
    show_default="text",
    help="text or json: server.log_format.",
)
@click.option(
    "--check", "checks", is_flag=True, help="Report everything that keeps it from starting."
)
@click.option("--open", "opens", is_flag=True, help="Open the server's page in a browser.")
@options.configured
@click.pass_context
def serve(
    context: click.Context,
    *,
    models: Sequence[str],
    host: str | None,
    port: str | None,
    log_format: str | None,
    checks: bool,
    opens: bool,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Serve MODELs, or those of the config, over HTTP."""
    stated = {"server.host": host, "server.port": port, "server.log_format": log_format}
    address = options.stated(**stated)
    if checks:
        _check(context, models, config_file, assignments, address)
        return
    with heap.paused_collection():
        found = prepared(models, config_file, assignments, address, listens=True)
    with _shown_log(found.settings.log_format, debug=context.obj.debug):
        _log_plugins(found.plugins, found.config)
        _run(found, opens=opens)
        busy = [thread.name for thread in threading.enumerate() if thread.name.startswith(WORKERS)]
        if busy:
            log.info("exit while threads are running: %s", ", ".join(busy))
    # The log has written its counts of suppressed records by now. Python would wait for the
    # threads, or end them in the middle of a library's code, which aborts in some.
    if busy:
        logging.shutdown()
        os._exit(0)


@dataclass(frozen=True)
class Prepared:
    """Everything that a config names, built or ready to load."""

    config: "Config"
    settings: "ServerSettings"
    plugins: "Plugins"
    specs: "dict[str, ModelSpec]"
    apis: "dict[str, Api]"
    tool_sources: "dict[str, ToolSource]"
    monitors: "dict[str, Monitor]"
    component_names: "ComponentNames"


def prepared(
    models: Sequence[str],
    config_file: Path | None,
    assignments: Sequence[str],
    address: Mapping[str, str],
    *,
    listens: bool,
) -> Prepared:
    """Read the config, and build the components of the server; loads no model.

    Args:
        models: names of models; those of the config when empty.
        config_file: the config; that of the environment, if there is one, when None.
        assignments: settings that override it.
        address: the options that override ``server.host`` and other settings.
        listens: whether clients reach the server, so that a public address needs keys.

    Raises:
        click.UsageError: there is no model, or two have one name.
        VlmkitError: the config is invalid, a public address has no keys, or a component cannot be
            built.
    """
    from vlmkit.assembly.sources import name_of, refuse_unknown
    from vlmkit.cli.loading import read_with_plugins, wanted_entries
    from vlmkit.config.providers import check_components, component_names_of
    from vlmkit_server.commands.components import apis, model_spec, monitors, tool_sources
    from vlmkit_server.http.listening import refuse_unguarded

    layered, plugins = read_with_plugins(config_file, assignments, address)
    config, settings = layered.config, settings_of(layered.config)
    if listens:  # before the log of plugins and risks, which would bury this error
        refuse_unguarded(settings)
    check_components(config, plugins)
    entries = wanted_entries(models, config, plugins)
    for entry in entries:  # a misspelt name is reported before the port opens
        refuse_unknown(entry.model, plugins)
    built = monitors(config, plugins)
    specs = {name_of(each): model_spec(each, config, plugins, built) for each in entries}
    if len(specs) < len(entries):
        raise click.UsageError("two models have one name; give each its own in [[models]]")
    sources, served = tool_sources(config, plugins), apis(config, plugins)
    groups = {"apis": served, "tool_sources": sources, "monitors": built}
    names = component_names_of(plugins, {}, groups)
    return Prepared(config, settings, plugins, specs, served, sources, built, names)


def settings_of(config: "Config") -> "ServerSettings":
    """Return the server's settings in a config."""
    from vlmkit_server.settings.server import ServerSettings

    return config.table("server", ServerSettings)


def _check(
    context: click.Context,
    models: Sequence[str],
    config_file: Path | None,
    assignments: Sequence[str],
    address: Mapping[str, str],
) -> None:
    """Write the problems, or that there are none; exit with code 1 if there are any."""
    from vlmkit.cli.loading import diagnosed
    from vlmkit_server.commands.check_serve import check

    try:
        layered, plugins = diagnosed(config_file, assignments, address)
    except VlmkitError as error:
        output.error(error)
        context.exit(1)
    config = layered.config
    is_good = check(layered, plugins, models)
    for remark in () if layered.errors else _exposed(config):
        click.echo(f"warning: {remark}", err=True)
    if not is_good:
        context.exit(1)
    click.echo(f"valid: it would listen on {_url(settings_of(config))}")


def _run(prepared: Prepared, *, opens: bool) -> None:
    """Serve, and print an example request once the models are loaded.

    Args:
        prepared: what is served.
        opens: whether a browser shows the server's page once the port is open.
    """
    from vlmkit_server.commands.components import request_fields

    with heap.paused_collection():
        from vlmkit_server.run import serve as run_server

    settings = prepared.settings

    def print_example(names: Sequence[str]) -> None:
        if settings.port and settings.log_format == "text":
            shown = [*prepared.specs, *names][-1]  # a loaded one, if there is any
            click.echo(_example(settings, shown), err=True)

    run_server(
        prepared.specs,
        settings,
        fetch=prepared.config.fetch,
        apis=prepared.apis,
        tool_sources=prepared.tool_sources,
        monitors=prepared.monitors,
        request_fields=request_fields(prepared.plugins),
        component_names=prepared.component_names,
        on_loaded=print_example,
        on_listening=partial(_open_page, settings) if opens else None,
    )


def _open_page(settings: "ServerSettings", port: int) -> None:
    """Show the server's page in a browser, without waiting for it."""

    def show() -> None:
        url = f"{_url(settings, port)}/"
        if not webbrowser.open(url):
            log.warning("no browser was found that could show %s", url)

    threading.Thread(target=show, name="vlmkit-browser", daemon=True).start()


def _log_plugins(plugins: "Plugins", config: "Config") -> None:
    """Log the plugins of this process, and likely mistakes of the operator."""
    from vlmkit.config.providers import described

    for plugin in plugins.found:
        for remark in plugin.remarks:
            log.warning("%s %s", plugin.who, remark)
        if plugin.is_loaded:
            what = " ".join(filter(None, (plugin.source, plugin.version)))
            log.info("plugin %r of %s, sha256 %s", plugin.name, what, plugin.digest() or "unknown")
        elif plugin.error:
            log.warning("%s could not be loaded: %s", plugin.who, described(plugin.error))
        else:
            why = "VLMKIT_BLOCK names it" if plugin.blocked else "plugins.only does not list it"
            log.info("plugin %r of %s is not loaded: %s", plugin.name, plugin.source, why)
    for remark in _exposed(config):
        log.warning("%s", remark)


def _exposed(config: "Config") -> Iterator[str]:
    """Yield settings to consider where other machines can reach the server."""
    server = settings_of(config)
    if server.health_metrics and server.is_health_public:
        yield (
            "server.health_metrics is set: any client that reaches server.health_port reads "
            "metrics without an API key"
        )
    if not server.is_public:
        return
    if config.plugins.only is None:
        yield "plugins.only is not set: every installed plugin is loaded"
    if server.asks_for_keys and not server.tls_certificate:
        yield "server.tls_certificate is not set: without TLS, API keys are sent in plain text"
    if server.allow_public_without_key and not server.asks_for_keys:
        yield "server.keys_file is not set: any client may use this server without an API key"
    yield from _unset(config)


def _unset(config: "Config") -> Iterator[str]:
    """Yield limits and logs that are not set, and the consequences."""
    server = settings_of(config)
    limits = "key" if server.asks_for_keys else "address"
    unset = {
        f"server.limits.{limits}": (getattr(server.limits, limits), LIMITLESS[limits]),
        "server.allowed_hosts": (server.allowed_hosts, "any Host header is accepted"),
        "pipeline.max_output_tokens": (
            config.pipeline.max_output_tokens,
            "one answer may fill the whole context",
        ),
        "server.access_log": (server.access_log, "requests are not recorded"),
        "server.audit_log": (server.audit_log, "refused keys and changes are not recorded"),
    }
    for name, (value, what) in unset.items():
        if not value:
            yield f"{name} is not set: {what}"
    if not server.renderers:
        yield "server.num_renderers is 0: the server process decodes files of clients"


def _example(settings: "ServerSettings", model: str) -> str:
    """Return an example request, for a shell and in Python."""
    asks = settings.asks_for_keys
    url = f"{_url(settings)}/v1"
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    return EXAMPLE.format(
        page=f"{_url(settings)}/",
        with_key=f" With one of its keys in {CLIENT_KEY}, ask it" if asks else " Ask it",
        url=url,
        chat=shlex.quote(f"{url}/chat/completions"),
        body=shlex.quote(json.dumps(body)),
        header=f' -H "authorization: Bearer ${CLIENT_KEY}"' if asks else "",
        key=f'os.environ["{CLIENT_KEY}"]' if asks else '"none"',
        imports="import os\n" if asks else "",
    )


def _url(settings: "ServerSettings", port: int | None = None) -> str:
    """Return the address for clients; the port is that of the settings unless given."""
    host = _client_host(settings)
    host = f"[{host}]" if ":" in host else host
    scheme = "https" if settings.tls_certificate else "http"
    return f"{scheme}://{host}:{settings.port if port is None else port}"


def _client_host(settings: "ServerSettings") -> str:
    """Return a host name that clients can use: 0.0.0.0 is not one."""
    if settings.host not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return settings.host
    return settings.allowed_hosts[0] if settings.allowed_hosts else "127.0.0.1"


def _packages() -> set[str]:
    """Return the packages of installed plugins; by convention, their loggers have these names."""
    entries = importlib.metadata.entry_points(group=PROJECT)
    return {entry.module.partition(".")[0] for entry in entries}


def _log_thread_failure(failure: threading.ExceptHookArgs) -> None:
    """Log where a thread failed, without the text of the error."""
    from vlmkit.kit.traces import trace_of

    name = failure.thread.name if failure.thread else "unknown"
    if failure.exc_value is not None:
        log.error("thread %r failed:\n%s", name, trace_of(failure.exc_value))


@contextmanager
def _shown_log(log_format: str, *, debug: bool) -> Iterator[None]:
    """Write the server's log to standard error, throttled, while it serves."""
    from vlmkit_server.logs.format import JsonFormat, TextFormat
    from vlmkit_server.logs.throttle import LogThrottle

    form = (JsonFormat if log_format == "json" else TextFormat)(tells_all=debug)
    levels = dict.fromkeys(("uvicorn", *_packages()), logging.WARNING)
    levels |= dict.fromkeys(("vlmkit", "vlmkit_server"), logging.DEBUG if debug else logging.INFO)
    with ExitStack() as after:
        logging.captureWarnings(capture=True)  # unlogged, they could show client data
        after.callback(logging.captureWarnings, capture=False)
        after.callback(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = _log_thread_failure
        for name, level in levels.items():
            logger = logging.getLogger(name)
            after.callback(logger.setLevel, logger.level)
            logger.setLevel(level)
        for handler in logging.getLogger().handlers:
            throttle = LogThrottle(handler)
            after.callback(handler.setFormatter, handler.formatter)
            after.callback(throttle.flush)
            after.callback(handler.removeFilter, throttle)
            handler.setFormatter(form)
            handler.addFilter(throttle)
        yield
