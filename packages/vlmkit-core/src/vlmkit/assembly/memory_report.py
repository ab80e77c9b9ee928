"""Plans the memory of a served model: what each component takes, and what fits.

The providers of the components know what they take. This module adds the process itself and the
preparation of images. It loads no weights, and builds the tokenizer only to prepare an image.
"""

import importlib
import importlib.util
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from vlmkit.assembly.load import build_context, choose, examination_errors
from vlmkit.config import Config, ModelEntry
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.config.providers import registry_of
from vlmkit.errors import ImageError
from vlmkit.image_files.decode_cost import COSTS, decode_cost
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.memory_plan import MemoryNeed, MemoryPlan, PlannedLoad
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit import memory
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.plugins import PluginSettings
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message

SERVER = "vlmkit_server.run"
PROCESS = "process"
RUN_BYTES = 36 * 2**20  # threads, connections and buffers of a running server; fitted to peaks
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

        Computations rarely take their most at the same moment, and reuse what others freed. So only
        the largest temporary need counts.
        """
        needs = [line.need for line in self.lines if line.device == device]
        lasting = sum(need.num_bytes for need in needs if not need.is_temporary)
        return lasting + max((need.num_bytes for need in needs if need.is_temporary), default=0)

    @property
    def device(self) -> str:
        """The device of the engine."""
        return next((each.device for each in self.lines if each.component == "engine"), CPU)

    def growth(self, name: str) -> int:
        """Return the bytes ``token_bytes`` or ``sequence_bytes`` of all needs of the engine."""
        return sum(getattr(line.need, name) for line in self.lines)

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
        max_step_tokens=_max_step_tokens(choice),
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
    modules = [name for plan in known.values() for name in plan.modules]
    text_side = None if checkpoint.is_preview else choice.get("tokenizer")
    process_bytes, renderer_bytes = (
        _resident_bytes(config.plugins, checkpoint, text_side, names) for names in (modules, [])
    )
    if process_bytes is not None:
        need = MemoryNeed(name="libraries and tokenizer", num_bytes=process_bytes + RUN_BYTES)
        lines.insert(0, Line(component=PROCESS, device=CPU, need=need))
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
        renderer_bytes=renderer_bytes,
    )


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


def _max_step_tokens(choice: Mapping[str, tuple[str, dict[str, Any]]]) -> int:
    """Return the tokens of the largest step by the settings of the scheduler."""
    settings = choice.get("scheduler", ("", {}))[1]
    stated = settings.get("max_step_tokens")
    return stated if isinstance(stated, int) else SchedulerSettings().max_step_tokens


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
    yield MemoryNeed(name="decoding", num_bytes=num * one, detail=detail, is_temporary=True)
    arrays = [array for slot in slots for array in slot.inputs.values()]
    prepared = request.num_sequences * sum(prod(array.shape) for array in arrays) * FLOAT_BYTES
    if arrays:
        num_bytes = min(prepared, bounds.max_prepared_bytes)
        yield MemoryNeed(name="prepared images", num_bytes=num_bytes)


def _sampling(limits: EngineLimits, request: Request) -> Iterator[Line]:
    """Yield the memory of logits on the host, with a copy for filters."""
    num_bytes = 2 * request.num_sequences * limits.vocab_size * FLOAT_BYTES
    yield Line(component="sampler", device=CPU, need=MemoryNeed(name="logits", num_bytes=num_bytes))


def _resident_bytes(
    settings: PluginSettings,
    checkpoint: Checkpoint,
    tokenizer: tuple[str, dict[str, Any]] | None,
    modules: Sequence[str],
) -> int | None:
    """Return the memory of a process with these modules and the tokenizer; None if unknown.

    Measured in a new process: this one has imported other modules.
    """
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as processes:
        return processes.submit(
            _measure, settings, checkpoint, tokenizer, (SERVER, *modules)
        ).result()


def _measure(
    settings: PluginSettings,
    checkpoint: Checkpoint,
    tokenizer: tuple[str, dict[str, Any]] | None,
    modules: Sequence[str],
) -> int | None:
    plugins = load_plugins(settings)
    for name in modules:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    if tokenizer is None:
        return memory.resident_bytes()
    context = BuildContext(checkpoint.name, checkpoint, registries=plugins.by_kind)
    built = registry_of(plugins, "tokenizer").build(*tokenizer, context)
    built.encode("a")
    return memory.resident_bytes()
