"""Measures the processes of a served model without its engine and encoder, for ``vlmkit plan``.

A new process builds what they have besides: the server's application, the tokenizer, the compiler
of constraints and its worker. It also imports what engine and encoder import, and calls their
kernels once. The present process cannot be measured: it has imported other modules.
"""

import importlib
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from vlmkit.assembly.load import build_context
from vlmkit.assembly.pipelines import constraint_worker_of
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.config.providers import build_group, registry_of
from vlmkit.config.renderer_plan import WorkerProcesses
from vlmkit.config.structs import Config, ModelEntry, with_tables
from vlmkit.interfaces.constraint import Vocabulary
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit import heap, memory
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.kinds import MEDIA_LOADER, TOKENIZER
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.constraints.compiled import Constraints
from vlmkit.running.constraints.sandbox.worker import ConstraintWorker
from vlmkit.running.pipeline.answer_constraints import SpecialTokens
from vlmkit.settings.plugins import PluginSettings
from vlmkit.types.constraint import Regex

SERVER = "vlmkit_server.commands.idle"
PIPELINE = "vlmkit.running.pipeline.pipeline"
BUILT = ("scheduler", "sampler")
NO_WORKERS = WorkerProcesses(
    num_renderers=0, needs_renderers=False, renderer_memory_bytes=0, compiles_constraints=False
)


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of processes before a request.

    Attributes:
        server_bytes: of the process that runs the model.
        constraint_worker_bytes: of the process that tries constraints; 0 without.
        renderer_bytes: of one process that prepares prompts.
        num_renderers: how many of them there are.
    """

    server_bytes: int
    constraint_worker_bytes: int
    renderer_bytes: int
    num_renderers: int


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """What a new process builds; can be pickled.

    Attributes:
        plugins: the plugins to load.
        config: all settings, as builtin types.
        entry: the model.
        checkpoint: its files.
        choice: the provider and the settings of each component.
        modules: that engine and encoder import.
        warm_ups: functions that call their kernels.
        vocab_size: columns of the logits; None if unknown.
    """

    plugins: PluginSettings
    config: Any
    entry: ModelEntry
    checkpoint: Checkpoint
    choice: Mapping[str, tuple[str, dict[str, Any]]]
    modules: tuple[str, ...] = ()
    warm_ups: tuple[Callable[[], object], ...] = ()
    vocab_size: int | None = None

    @classmethod
    def of(cls, config: Config, **more: Any) -> "MeasuredModel":
        """Return the description of a model that is served with a config."""
        values = msgspec.to_builtins(config, enc_hook=os.fspath)
        return cls(plugins=config.plugins, config=values, **more)


def process_memory(model: MeasuredModel) -> ProcessMemory | None:
    """Return the memory of the processes of a model; None if the system does not state it.

    Raises:
        VlmkitError: a component cannot be built.
    """
    if memory.resident_bytes() is None:
        return None
    server_bytes, worker_bytes, num_renderers = _in_new_process(_measure_server, model)
    renderer_bytes = _in_new_process(_measure_renderer, model)
    return ProcessMemory(server_bytes, worker_bytes, renderer_bytes, num_renderers)


def _in_new_process(measure: Callable[[MeasuredModel], Any], model: MeasuredModel) -> Any:
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as processes:
        return processes.submit(measure, model).result()


def _measure_renderer(model: MeasuredModel) -> int:
    """Return the bytes of a process with the tokenizer alone."""
    importlib.import_module("vlmkit.assembly.renderer")
    plugins = load_plugins(model.plugins)
    tokenizer = _tokenizer(model, plugins, _context(model, plugins))
    heap.trim()
    num_bytes = _resident_bytes()
    del tokenizer  # until here it is resident
    return num_bytes


def _measure_server(model: MeasuredModel) -> tuple[int, int, int]:
    """Return the bytes of the server and of its constraint worker, and the number of renderers."""
    plugins = load_plugins(model.plugins)
    config = msgspec.convert(model.config, with_tables(plugins.tables))
    for name in (PIPELINE, *model.modules):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    measure = partial(_measure, model, config, plugins)
    if importlib.util.find_spec(SERVER.partition(".")[0]) is None:
        return measure(NO_WORKERS)
    found: tuple[int, int, int] = importlib.import_module(SERVER).beside(config, plugins, measure)
    return found


def _measure(
    model: MeasuredModel, config: Config, plugins: Plugins, workers: WorkerProcesses
) -> tuple[int, int, int]:
    with _components(model, config, plugins, workers) as worker:
        for warm_up in model.warm_ups:
            warm_up()
        heap.settle()
        heap.trim()
        worker_pid = None if worker is None else worker.pid
        worker_bytes = 0 if worker_pid is None else memory.resident_bytes(worker_pid) or 0
        return _resident_bytes(), worker_bytes, workers.num_renderers


@contextmanager
def _components(
    model: MeasuredModel, config: Config, plugins: Plugins, workers: WorkerProcesses
) -> "Iterator[ConstraintWorker | None]":
    """Build the components that compute nothing; yield the worker of the constraint compiler."""
    context = _context(model, plugins)
    tokenizer = _tokenizer(model, plugins, context)
    if tokenizer is None:
        yield None
        return
    context = replace(context, text_side=tokenizer)
    with ExitStack() as built:
        loaders = registry_of(plugins, MEDIA_LOADER.section)
        parts = [build_group(loaders, config.group(MEDIA_LOADER.section), context, built)]
        parts += [
            registry_of(plugins, section).build(*model.choice[section], context)
            for section in BUILT
            if section in model.choice
        ]
        worker = constraint_worker_of(model.choice, config, context, workers)
        if worker is not None:
            built.callback(worker.close)
        if "constraint" in model.choice:
            constraints = _constraints(model, plugins, context, tokenizer, worker)
            constraints.grammar_states(Regex("a"), 1)  # which waits until the worker is ready
        yield worker


def _constraints(
    model: MeasuredModel,
    plugins: Plugins,
    context: BuildContext,
    tokenizer: Tokenizer,
    worker: ConstraintWorker | None,
) -> Constraints:
    name, settings = model.choice["constraint"]
    registry = registry_of(plugins, "constraint")

    def make(words: Vocabulary) -> Any:
        return registry.build(name, settings, replace(context, vocabulary=words))

    vocab_size = model.vocab_size or tokenizer.vocab_size
    special = SpecialTokens.of(tokenizer, vocab_size)
    return Constraints(
        make,
        tokenizer,
        vocab_size=vocab_size,
        eos_ids=special.eos_ids,
        banned_ids=special.banned_ids,
        max_bytes=0,
        worker=worker,
    )


def _context(model: MeasuredModel, plugins: Plugins) -> BuildContext:
    return build_context(model.entry, model.choice, plugins, model.checkpoint)


def _tokenizer(model: MeasuredModel, plugins: Plugins, context: BuildContext) -> Tokenizer | None:
    """Return the tokenizer; None of a model whose files are not on this disk."""
    if model.checkpoint.is_preview:
        return None
    name, settings = model.choice[TOKENIZER.section]
    tokenizer: Tokenizer = registry_of(plugins, TOKENIZER.section).build(name, settings, context)
    tokenizer.encode("a")
    return tokenizer


def _resident_bytes() -> int:
    return memory.resident_bytes() or 0
