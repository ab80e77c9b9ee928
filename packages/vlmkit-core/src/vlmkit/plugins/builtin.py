"""The built-in components of the core, registered by the same hooks as those of plugins."""

from typing import Any

from vlmkit.errors import ConfigError
from vlmkit.interfaces.media_loader import MediaLoader
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.proposer import Proposer
from vlmkit.interfaces.runner import Runner
from vlmkit.interfaces.sampler import Sampler
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit.settings.ngram import NgramSettings
from vlmkit.settings.replicas import ReplicasSettings
from vlmkit.settings.request_log import RequestLogSettings
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.settings.subprocess import SubprocessSettings

VLMKIT_API = (1, 0)
PRIORITY = 10
"""Above the default of 0, so that installing a plugin changes no answer unless it asks to."""


def _build_scheduler(context: BuildContext) -> Scheduler:
    from vlmkit.running.scheduling.scheduler import ContinuousScheduler

    return ContinuousScheduler(context.settings)


def _build_sampler(_: BuildContext) -> Sampler:
    from vlmkit.running.sampling.sampler import ArraySampler

    return ArraySampler()


def _build_ngram(context: BuildContext) -> Proposer:
    from vlmkit.running.engine_loop.ngram import NgramProposer

    return NgramProposer(context.settings)


def _build_log(context: BuildContext) -> Observer:
    from vlmkit.running.observers.builtin import RequestLog

    return RequestLog(context.settings)


def _build_counters(_: BuildContext) -> Observer:
    from vlmkit.running.observers.builtin import Counters

    return Counters()


def _build_replicas(context: BuildContext) -> Runner:
    from vlmkit.running.replicas import Replicas

    settings: ReplicasSettings = context.settings
    return Replicas([context.pipeline() for _ in range(settings.num_replicas)])


def _build_subprocess(context: BuildContext) -> Runner:
    from vlmkit.running.subprocess_runner.runner import SubprocessRunner

    if context.pipelines is None:
        raise ConfigError(
            "the runner 'subprocess' needs a model whose files are on this machine",
            hint="name a model that is a folder, a hub id or a packaged name",
        )
    made = {name: make() for name, make in context.observers.items()}
    observers = {name: observer for name, observer in made.items() if observer is not None}
    return SubprocessRunner(
        context.pipelines.plan(), context.settings, observers, on_stage=context.on_stage
    )


def _build_image_loader(_: BuildContext) -> MediaLoader:
    from vlmkit.running.prompting.image_loader import ImageLoader

    return ImageLoader()


def _build_tiff_loader(_: BuildContext) -> MediaLoader:
    from vlmkit.running.prompting.tiff_loader import TiffLoader

    return TiffLoader()


@hookimpl
def vlmkit_register_schedulers(registry: Registry[Any]) -> None:
    """Register ``scheduler.use = "continuous"``."""
    registry.add(
        "continuous",
        _build_scheduler,
        settings=SchedulerSettings,
        priority=PRIORITY,
        description="continuous batching, decode first, chunked prefill, priorities",
    )


@hookimpl
def vlmkit_register_samplers(registry: Registry[Any]) -> None:
    """Register ``sampler.use = "array"``."""
    registry.add(
        "array",
        _build_sampler,
        priority=PRIORITY,
        description="every OpenAI sampling parameter, on NumPy or torch arrays",
    )


@hookimpl
def vlmkit_register_proposers(registry: Registry[Any]) -> None:
    """Register ``proposer.use = "ngram"``."""
    registry.add(
        "ngram",
        _build_ngram,
        settings=NgramSettings,
        description="drafts the tokens that followed the same few tokens in prompt or answer",
    )


@hookimpl
def vlmkit_register_media_loaders(registry: Registry[Any]) -> None:
    """Register ``media_loaders.use = ["image", "tiff"]``."""
    registry.add(
        "image",
        _build_image_loader,
        priority=PRIORITY,
        description="PNG, JPEG, WEBP, GIF, BMP and AVIF",
    )
    registry.add(
        "tiff",
        _build_tiff_loader,
        priority=-PRIORITY,  # any other installed loader for TIFF files takes precedence
        description="pages of TIFF files as images",
    )


@hookimpl
def vlmkit_register_runners(registry: Registry[Any]) -> None:
    """Register ``runner.use = "replicas"`` and ``"subprocess"``."""
    registry.add(
        "replicas",
        _build_replicas,
        settings=ReplicasSettings,
        description="several pipelines; each request goes to the one with the least work",
    )
    registry.add(
        "subprocess",
        _build_subprocess,
        settings=SubprocessSettings,
        description="the pipeline in a child process, which is restarted when it crashes",
    )


@hookimpl
def vlmkit_register_observers(registry: Registry[Any]) -> None:
    """Register ``observers.use = ["log", "counters"]``."""
    registry.add(
        "log",
        _build_log,
        settings=RequestLogSettings,
        description="a JSON line when a request is accepted, at its first token and at its end",
    )
    registry.add(
        "counters",
        _build_counters,
        description="totals of requests, tokens and seconds, for the statistics",
    )
