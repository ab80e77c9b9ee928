"""Plans the memory of a served model: what each component takes, and what fits.

The providers of the components know what they take. This module adds the process itself and the
preparation of images. It loads no weights, and builds the tokenizer only to prepare an image.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from vlmkit.assembly.load import build_context, choose, examination_errors
from vlmkit.assembly.process_memory import MeasuredModel, ProcessMemory, process_memory
from vlmkit.config import Config, ModelEntry
from vlmkit.config.providers import registry_of
from vlmkit.errors import ImageError
from vlmkit.image_files.decode_cost import COSTS, decode_cost
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.memory_plan import MemoryNeed, MemoryPlan, PlannedLoad
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message

PROCESS = "process"
FLOAT_BYTES = 4
CPU = "cpu"
PLANNED = ("engine", "media_encoder")


@dataclass(frozen=True, slots=True)
class Request:
    """The load that a user asks about.

    Attributes:
        context_tokens: tokens of a sequence; None is the longest.
        num_sequences: sequences at once.
        image_size: width and height of the image of each request; None without images.
    """

    context_tokens: int | None = None
    num_sequences: int = 1
    image_size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a report: a need, and whose it is."""

    component: str
    device: str
    need: MemoryNeed


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """The memory of a model under a load.

    Attributes:
        lines: the needs of all components.
        limits: of the engine; None if they are unknown.
        context_tokens: tokens of a sequence; None if the engine's limits are unknown.
        num_sequences: sequences at once.
        image_tokens: tokens of an image; None if its files are not on this disk.
        unplanned: components whose providers do not say what they take.
        renderer_bytes: memory of one renderer process before a request.
    """

    lines: tuple[Line, ...]
    limits: EngineLimits | None
    context_tokens: int | None
    num_sequences: int
    image_tokens: int | None
    unplanned: tuple[str, ...]
    renderer_bytes: int | None

    def num_bytes(self, device: str) -> int:
        """Return the bytes that all needs take on a device.

        Images are prepared and encoded beside the engine's steps, in other threads. What one of
        them frees stays with the heap of its thread, so it is of no use to the others.
        """
        return sum(line.need.num_bytes for line in self.lines if line.device == device)

    @property
    def device(self) -> str:
        """The device of the engine."""
        return next((each.device for each in self.lines if each.component == "engine"), CPU)

    def growth(self, name: str) -> int:
        """Return the bytes ``token_bytes`` or ``sequence_bytes`` of all needs of the engine."""
        return sum(getattr(line.need, name) for line in self.lines)

    @property
    def cache_growth_bytes(self) -> int:
        """Bytes by which the cache grows while it keeps prompts of earlier requests."""
        if self.limits is None:
            return 0
        capacity = self.limits.capacity_tokens
        needs = [line.need for line in self.lines if line.need.token_bytes]
        return sum(max(0, capacity * need.token_bytes - need.num_bytes) for need in needs)

    @property
    def fixed_bytes(self) -> int:
        """Bytes on the engine's device that no token and no sequence changes."""
        variable = sum(
            line.need.num_bytes
            for line in self.lines
            if line.need.token_bytes or line.need.sequence_bytes
        )
        return self.num_bytes(self.device) - variable


def memory_report(
    checkpoint: Checkpoint,
    entry: ModelEntry,
    config: Config,
    plugins: Plugins,
    request: Request,
) -> MemoryReport:
    """Return the memory of a model under a load.

    Raises:
        VlmkitError: the model cannot be loaded here, as at load.
    """
    choice = choose(entry, config, plugins, checkpoint)
    for error in examination_errors(entry, choice, plugins, checkpoint):
        raise error
    context = build_context(entry, choice, plugins, checkpoint)
    slots: tuple[MediaSlot, ...] = ()
    if request.image_size is not None and not checkpoint.is_preview:
        slots = _slots(choice, plugins, context, request.image_size, config.pipeline.images)
    load = PlannedLoad(
        context_tokens=request.context_tokens,
        num_sequences=request.num_sequences,
        max_step_tokens=_of_scheduler(choice, "max_step_tokens"),
        max_encoded_tokens=_of_scheduler(choice, "encoder_budget_tokens"),
        slots=slots,
    )
    plans = _plans(choice, plugins, context, load)
    known = {section: plan for section, plan in plans.items() if plan is not None}
    limits = next((plan.limits for plan in known.values() if plan.limits is not None), None)
    lines = [
        Line(component=section, device=plan.device, need=need)
        for section, plan in known.items()
        for need in plan.needs
    ]
    lines += [
        Line(component="preparation", device=CPU, need=need)
        for need in _preparation(slots, request, config)
    ]
    processes = process_memory(
        MeasuredModel.of(
            config,
            entry=entry,
            checkpoint=checkpoint,
            choice=choice,
            modules=tuple(name for plan in known.values() for name in plan.modules),
            warm_ups=tuple(plan.warm_up for plan in known.values() if plan.warm_up is not None),
            vocab_size=None if limits is None else limits.vocab_size,
        )
    )
    if processes is not None:
        lines[:0] = _processes(processes)
    context_tokens = request.context_tokens
    if limits is not None:
        longest = limits.max_sequence_tokens
        context_tokens = min(context_tokens or longest, longest)
        lines += _sampling(limits, request)
    return MemoryReport(
        lines=tuple(lines),
        limits=limits,
        context_tokens=context_tokens,
        num_sequences=request.num_sequences,
        image_tokens=sum(slot.num_features for slot in slots) if slots else None,
        unplanned=tuple(section for section, plan in plans.items() if plan is None),
        renderer_bytes=None if processes is None else processes.renderer_bytes,
    )


def _processes(found: ProcessMemory) -> Iterator[Line]:
    """Yield what the processes take before a request."""
    needs = [MemoryNeed(name="libraries and tokenizer", num_bytes=found.server_bytes)]
    if found.constraint_worker_bytes:
        needs.append(MemoryNeed(name="constraint worker", num_bytes=found.constraint_worker_bytes))
    if found.num_renderers:
        num_bytes, detail = found.num_renderers * found.renderer_bytes, f"{found.num_renderers}"
        needs.append(MemoryNeed(name="renderers", num_bytes=num_bytes, detail=detail))
    return (Line(component=PROCESS, device=CPU, need=need) for need in needs)


def _plans(
    choice: Mapping[str, tuple[str, dict[str, Any]]],
    plugins: Plugins,
    context: BuildContext,
    load: PlannedLoad,
) -> dict[str, MemoryPlan | None]:
    """Return the plan of each component that takes memory by the load; None if it has none."""
    return {
        section: registry_of(plugins, section).plan(*choice[section], context, load)
        for section in PLANNED
        if section in choice
    }


def _of_scheduler(choice: Mapping[str, tuple[str, dict[str, Any]]], name: str) -> int:
    """Return a number of the settings of the scheduler, or its default."""
    stated = choice.get("scheduler", ("", {}))[1].get(name)
    found: int = stated if isinstance(stated, int) else getattr(SchedulerSettings(), name)
    return found


def _slots(
    choice: Mapping[str, tuple[str, dict[str, Any]]],
    plugins: Plugins,
    context: BuildContext,
    size: tuple[int, int],
    limits: ImageLimits,
) -> tuple[MediaSlot, ...]:
    """Return an image of a size as the tokenizer prepares it.

    Raises:
        RequestError: the model takes no image, or not of this size.
    """
    if size[0] * size[1] > limits.max_pixels:
        raise ImageError(
            f"an image of {size[0]}x{size[1]} is over {limits.max_pixels} pixels",
            hint="raise pipeline.images.max_pixels, or plan for a smaller one",
        )
    name, settings = choice["tokenizer"]
    tokenizer: Tokenizer = registry_of(plugins, "tokenizer").build(name, settings, context)
    image = Image.open(np.zeros((size[1], size[0], 3), np.uint8))
    return tokenizer.prompt([Message.of("user", "?", [ImagePart(image)])]).media


def _preparation(
    slots: Sequence[MediaSlot], request: Request, config: Config
) -> Iterator[MemoryNeed]:
    """Yield the memory to decode images, and that of the prepared ones."""
    if request.image_size is None:
        return
    bounds = config.pipeline
    cost = decode_cost(
        COSTS["JPEG"],
        "RGB",
        request.image_size,
        num_file_bytes=0,
        is_copied=False,
        may_turn=True,
    )
    one = cost.peak_bytes + cost.prepare_bytes
    num = max(1, min(request.num_sequences, bounds.num_workers, bounds.max_decoding_bytes // one))
    detail = f"{num} images at once"
    yield MemoryNeed(name="decoding", num_bytes=num * one, detail=detail)
    arrays = [array for slot in slots for array in slot.inputs.values()]
    prepared = request.num_sequences * sum(prod(array.shape) for array in arrays) * FLOAT_BYTES
    if arrays:
        num_bytes = min(prepared, bounds.max_prepared_bytes)
        yield MemoryNeed(name="prepared images", num_bytes=num_bytes)


def _sampling(limits: EngineLimits, request: Request) -> Iterator[Line]:
    """Yield the memory of logits on the host, with a copy for filters."""
    num_bytes = 2 * request.num_sequences * limits.vocab_size * FLOAT_BYTES
    yield Line(component="sampler", device=CPU, need=MemoryNeed(name="logits", num_bytes=num_bytes))
