"""The built-in components pass the contracts of plugins."""

import io
from pathlib import Path

import pytest

from vlmkit.running.observers.builtin import Counters, RequestLog
from vlmkit.running.prompting.image_loader import ImageLoader
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.request_log import RequestLogSettings
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit_testing import (
    MediaLoaderContract,
    ObserverContract,
    SamplerContract,
    SchedulerContract,
    picture,
)


class TestContinuousScheduler(SchedulerContract):
    step_budget_s = 0.2

    def make(self) -> ContinuousScheduler:
        return ContinuousScheduler()


class TestContinuousSchedulerWithSmallBudgets(SchedulerContract):
    max_step_tokens = 11
    max_encoder_tokens = 5
    step_budget_s = 0.05

    def make(self) -> ContinuousScheduler:
        return ContinuousScheduler(
            SchedulerSettings(
                max_step_tokens=11, step_budget_ms=50, max_running=4, encoder_budget_tokens=5
            )
        )


class TestArraySampler(SamplerContract):
    def make(self) -> ArraySampler:
        return ArraySampler()


class TestCounters(ObserverContract):
    def make(self) -> Counters:
        return Counters()


class TestRequestLog(ObserverContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.file = tmp_path / "requests.jsonl"

    def make(self) -> RequestLog:
        return RequestLog(RequestLogSettings(file=str(self.file), steps=True))


class TestImageLoader(MediaLoaderContract):
    def make(self) -> ImageLoader:
        return ImageLoader()

    def files(self) -> list[bytes]:
        return [file(name, seed) for seed, name in enumerate(("PNG", "JPEG", "WEBP", "GIF", "BMP"))]


def file(image_format: str, seed: int) -> bytes:
    content = io.BytesIO()
    picture(seed=seed).to_pil().save(content, image_format)
    return content.getvalue()
