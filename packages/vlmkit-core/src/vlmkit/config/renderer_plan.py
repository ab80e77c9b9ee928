"""What a renderer builds: a model's text side and whatever opens its files, and nothing else."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from vlmkit.config.structs import Config
from vlmkit.config.worker_plan import Part, WorkerPlan
from vlmkit.errors import VlmkitError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.plugins.registry import BuildContext
from vlmkit.settings.pipeline import PipelineSettings

if TYPE_CHECKING:
    from vlmkit.running.prompting.renderers.pool import RendererPool

log = logging.getLogger(__name__)


class TextSide(WorkerPlan, frozen=True, kw_only=True):
    """What a renderer builds.

    Attributes:
        model: how the server lists it.
        tokenizer: who makes tokens.
        media_loaders: who opens files, in order.
        modalities: what messages may hold.
        limits: of the engine.
        bounds: what is refused of one request.
        memory_bytes: that the renderer may take.
        num_threads: that decode the images of a request.
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
    """The processes that a served model has beside the one that runs it.

    Attributes:
        num_renderers: how many open files, decode images and make prompts; 0 does that in threads.
        needs_renderers: whether a model that no renderer can build is refused, not served without.
        renderer_memory_bytes: memory that a renderer may take besides what it has when idle.
        compiles_constraints: whether constraints are compiled in a process of their own first.
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
    """Start processes that build a text side once more, if any are asked for.

    Where the operator asked for none, and they are the default of a public address, a text side
    that cannot be built in them is built in the server alone, and the log says so.

    Args:
        workers: how many, and what they may take; none where None.
        parts: of the pipeline, as built here.
        tokenizer: its provider.
        config: all settings.
        context: what the parts were built from.
        model: how the server lists it.

    Raises:
        VlmkitError: they cannot build it, and were asked for.
    """
    if workers is None or not workers.num_renderers:
        return None
    num = workers.num_renderers
    context.on_stage("renderers")
    from vlmkit.running.pipeline.pipeline import (
        modalities_of,  # commands that run none import no arrays
    )
    from vlmkit.running.prompting.renderers.messages import Frame
    from vlmkit.running.prompting.renderers.pool import RendererPool

    files, settings = context.files, config.group("media_loaders").settings
    plan = TextSide(
        plugins=config.plugins,
        reference=context.reference,
        name=files.name,
        path=str(files.path),
        revision=files.revision,
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
