"""The plan of a renderer process, which builds only a model's tokenizer and media loaders."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from vlmkit.config.structs import Config
from vlmkit.config.worker_plan import ModelFiles, Part, WorkerPlan
from vlmkit.errors import VlmkitError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.plugins.registry import BuildContext
from vlmkit.settings.pipeline import PipelineSettings

if TYPE_CHECKING:
    from vlmkit.running.prompting.renderers.pool import RendererPool

log = logging.getLogger(__name__)


class TextSide(WorkerPlan, frozen=True, kw_only=True):
    """The parts that a renderer builds.

    Attributes:
        model: the name of the model in the server.
        tokenizer: the provider of the tokenizer.
        media_loaders: the providers of the media loaders, in order.
        modalities: the kinds of content that messages may hold.
        limits: the limits of the engine.
        bounds: the limits of one request.
        memory_bytes: memory that the renderer may use in addition to its idle memory.
        num_threads: threads that decode the images of a request.
    """

    model: str
    tokenizer: Part
    media_loaders: list[Part]
    modalities: tuple[str, ...]
    limits: EngineLimits
    bounds: PipelineSettings
    memory_bytes: int
    num_threads: int


@dataclass(frozen=True, kw_only=True)
class WorkerProcesses:
    """The worker processes of a served model, besides the process that runs it.

    Attributes:
        num_renderers: number of processes that open files, decode images and build prompts; 0 uses
            threads.
        needs_renderers: whether a model is refused if no renderer can be started, instead of being
            served without.
        renderer_memory_bytes: memory that a renderer may use in addition to its idle memory.
        compiles_constraints: whether constraints are first compiled in a separate process.
    """

    num_renderers: int
    needs_renderers: bool
    renderer_memory_bytes: int
    compiles_constraints: bool


def renderers(
    workers: WorkerProcesses | None,
    parts: Mapping[str, Any],
    tokenizer: Part,
    config: Config,
    context: BuildContext,
    model: str,
) -> "RendererPool | None":
    """Start the renderer processes of a model, if any are configured.

    Renderers are the default of a server with a public address. If they are only the default and
    cannot be started, the server process renders prompts itself and logs a warning.

    Args:
        workers: number and limits of the processes; None for none.
        parts: the components of the pipeline, as built in this process.
        tokenizer: the provider of the tokenizer.
        config: all settings.
        context: the build context of the components.
        model: the name of the model in the server.

    Raises:
        VlmkitError: the operator configured renderers, and they cannot be started.
    """
    if workers is None or not workers.num_renderers:
        return None
    num = workers.num_renderers
    context.on_stage("renderers")
    from vlmkit.running.pipeline.pipeline import (
        modalities_of,  # commands that run none import no arrays
    )
    from vlmkit.running.prompting.renderers.pool import RendererPool
    from vlmkit.wire.frames import Frame

    files, settings = context.files, config.group("media_loaders").settings
    plan = TextSide(
        plugins=config.plugins,
        reference=context.reference,
        files=ModelFiles.of(files),
        model=model,
        tokenizer=tokenizer,
        media_loaders=[(name, settings.get(name, {})) for name in parts["media_loaders"]],
        modalities=modalities_of(parts.get("media_encoder")),
        limits=parts["engine"].limits,
        bounds=config.pipeline,
        memory_bytes=workers.renderer_memory_bytes,
        num_threads=max(1, config.pipeline.num_workers // num),
    )
    frame = Frame(msgspec.msgpack.encode(plan))
    try:
        return RendererPool(frame, num, config.pipeline.prepare_timeout_s)
    except VlmkitError as error:
        if workers.needs_renderers:
            raise
        log.warning(
            "model %r: the server process decodes files of clients, since no renderer process can "
            "be started: %s",
            model,
            error,
        )
        return None
