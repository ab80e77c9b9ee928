"""The built-in scheduler and sampler keep the contracts that every plugin's must."""

from vlmkit.sampler import ArraySampler
from vlmkit.scheduler import ContinuousScheduler, SchedulerSettings
from vlmkit.testing import SamplerContract, SchedulerContract


class TestContinuousScheduler(SchedulerContract):
    def make(self) -> ContinuousScheduler:
        return ContinuousScheduler()


class TestContinuousSchedulerWithSmallBudgets(SchedulerContract):
    max_step_tokens = 11

    def make(self) -> ContinuousScheduler:
        return ContinuousScheduler(
            SchedulerSettings(max_step_tokens=11, max_running=4, encoder_budget_tokens=5)
        )


class TestArraySampler(SamplerContract):
    def make(self) -> ArraySampler:
        return ArraySampler()
