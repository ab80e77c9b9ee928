"""``vlmkit worker``: runs one model for gateways on this machine or others."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from vlmkit.cli.model_command import CommandModel, WorkerProcesses, configured, stated
from vlmkit.errors import EngineFailed
from vlmkit.interfaces.observer import Observer
from vlmkit_grpc.addresses import SCHEME, WorkerAddress
from vlmkit_grpc.credentials import Access, access_of
from vlmkit_grpc.process_log import shown_log
from vlmkit_grpc.service import WorkerService
from vlmkit_grpc.settings import DEFAULT_LISTEN, WorkerSettings

PUBLIC_RENDERERS = 2


@click.command()
@click.argument("model", required=False)
@click.option(
    "--listen",
    metavar="ADDRESS",
    show_default=DEFAULT_LISTEN,
    help="HOST:PORT, or unix:PATH: the setting worker.listen; port 0 for a free one.",
)
@click.option(
    "--vllm",
    is_flag=True,
    help="Also answer vllm-router: the setting worker.vllm_services.",
)
@configured
@click.pass_context
def worker(
    context: click.Context,
    *,
    model: str | None,
    listen: str | None,
    vllm: bool,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Run MODEL for gateways, over gRPC.

    ``vlmkit serve grpc://HOST:PORT`` is such a gateway.
    """
    vllm_services = "true" if vllm else None
    options = stated(**{"worker.listen": listen, "worker.vllm_services": vllm_services})
    chosen = CommandModel(model, config_file, assignments, options)
    settings = chosen.table("worker", WorkerSettings)
    access = access_of(settings, "worker")  # before the model is loaded
    with shown_log(is_debugging=context.obj.debug):
        is_wanted = _run(chosen, settings, access)
    if not is_wanted:
        raise EngineFailed("the engine of the model failed", hint="see the log above")


def _run(chosen: CommandModel, settings: WorkerSettings, access: Access) -> bool:
    """Load the model and serve it; return whether the end was wanted."""
    from vlmkit.running.fleet.waiting_tokens import OBSERVER, LoadObserver
    from vlmkit_grpc.watch import CacheObserver
    from vlmkit_grpc.worker import Worker

    digest = chosen.files().fingerprint
    observers: dict[str, Callable[[], Observer]] = {OBSERVER: LoadObserver}
    cache = CacheObserver() if settings.cache_events else None
    if cache is not None:
        observers["cache"] = lambda: cache
    runner = chosen.build(observers, _processes(settings, access.address))
    try:
        return asyncio.run(Worker(runner, digest, settings, access, cache).serve(_show))
    finally:
        runner.close()


def _processes(settings: WorkerSettings, address: WorkerAddress) -> WorkerProcesses:
    num = settings.num_renderers
    if num is None:
        num = 0 if address.is_loopback else PUBLIC_RENDERERS
    return WorkerProcesses(
        num_renderers=num,
        needs_renderers=settings.num_renderers is not None,
        renderer_memory_bytes=settings.renderer_memory_bytes,
        compiles_constraints=settings.constraint_workers,
    )


def _show(service: WorkerService, address: str) -> None:
    found = service.description
    reference = f"{SCHEME}://{address.removeprefix('unix:')}"
    click.echo(f"ready: {found.model} at {reference}\nmodel digest {found.model_digest}", err=True)
