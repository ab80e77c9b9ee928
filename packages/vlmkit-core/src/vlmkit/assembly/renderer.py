"""The process of a renderer: ``python -m vlmkit.assembly.renderer``, started by a server.

Its first answer says whether it built its tokenizer and media loaders. It builds no engine and
reads no weights.
"""

import logging
import os
import sys
from dataclasses import replace
from functools import cache, partial
from typing import Any

import msgspec

from vlmkit.checkpoints.pooling import read_pooling
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.config.providers import component_names_of, registry_of
from vlmkit.config.renderer_plan import TextSide
from vlmkit.config.worker_plan import Part
from vlmkit.errors import PluginUnavailable, VlmkitError
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.kit.traces import log_of_worker, trace_of
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.prompting.image_decoding import ImageDecoder
from vlmkit.running.prompting.media import MediaPreparation
from vlmkit.running.prompting.prompt_builder import LocalPromptBuilder
from vlmkit.running.prompting.renderers.messages import CODEC
from vlmkit.running.prompting.renderers.server import bound_memory, serve
from vlmkit.running.prompting.renderers.shared_arena import SharedArena
from vlmkit.running.scheduling.decode_memory import DecodeMemoryLimiter
from vlmkit.running.scheduling.fair_executor import FairExecutor
from vlmkit.types.sampling import SamplingParams
from vlmkit.wire.frames import read_frame, write_frame

log = logging.getLogger(__name__)

UNBOUNDED = 2**63


def main() -> None:
    """Build a tokenizer and media loaders, and serve requests for prompts."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries must not mix with answers
    log_of_worker()
    arena = SharedArena.open(sys.argv[1])
    requests = sys.stdin.buffer
    plan = msgspec.msgpack.decode(read_frame(requests).head, type=TextSide)
    try:
        prompts = built(plan)
    except VlmkitError as error:
        write_frame(answers, CODEC.encode(error))
        return
    bound_memory(plan.memory_bytes)
    limiter = DecodeMemoryLimiter(plan.bounds.max_decoding_bytes, UNBOUNDED)
    serve(prompts, limiter, arena, requests, answers)


def built(plan: TextSide) -> LocalPromptBuilder:
    """Build the prompt builder of a plan.

    Raises:
        VlmkitError: a component cannot be built.
    """
    plugins = load_plugins(plan.plugins)
    files = plan.files.checkpoint
    context = BuildContext(
        plan.reference, files, revision=files.revision, registries=plugins.by_kind
    )
    tokenizer = _part("tokenizer", plan.tokenizer, plugins, context)
    context = replace(context, text_side=tokenizer)
    loaders = {
        part[0]: _part("media_loaders", part, plugins, context) for part in plan.media_loaders
    }
    facts = RunnerFacts(
        name=plan.model,
        limits=plan.limits,
        modalities=plan.modalities,
        eos_ids=frozenset(),
        defaults=SamplingParams(),
        bounds=plan.bounds,
        media_loaders=tuple(loaders),
    )
    pooling = cache(partial(read_pooling, files))
    workers = FairExecutor(plan.num_threads, "vlmkit-pictures")
    decoder = ImageDecoder(workers, plan.num_threads, plan.bounds.max_decoding_bytes)
    component_names = component_names_of(
        plugins, {"tokenizer": plan.tokenizer}, {"media_loaders": loaders}
    )
    media = MediaPreparation(loaders, facts, component_names)
    return LocalPromptBuilder(
        tokenizer, media, decoder, pooling, plan.limits, plan.bounds, component_names
    )


def _part(section: str, part: Part, plugins: Plugins, context: BuildContext) -> Any:
    """Build one component.

    Raises:
        VlmkitError: the component cannot be built; it may need an engine, which a renderer lacks.
    """
    name, settings = part
    try:
        return registry_of(plugins, section).build(name, settings, context)
    except VlmkitError:
        raise
    except Exception as error:
        log.error("%s %r could not be built:\n%s", section, name, trace_of(error))  # noqa: TRY400
        raise PluginUnavailable(
            f"{section} {name!r} cannot be built in a renderer, which has no engine beside it: "
            f"{type(error).__name__}",
            hint="set server.num_renderers to 0",
        ) from error


if __name__ == "__main__":
    main()
