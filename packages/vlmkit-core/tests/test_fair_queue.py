"""The fair queue: no tenant waits for another's burst, and none starves."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import example, given, settings, strategies as st

from mock_model import script, wait_until
from vlmkit.errors import QueueFull
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.engine_loop.fair_queue import (
    ALONE_WINDOW_TOKENS,
    OUTPUT_WEIGHT,
    WINDOW_TOKENS,
    FairQueue,
)
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.message import Message, TextPart
from vlmkit.types.request import BACKGROUND, Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_testing.contracts.strict_cache import StrictCache


@dataclass(eq=False)
class FakeJob:
    """The attributes of a job that the fair queue reads."""

    account: str
    sequence: Sequence
    num_outputs: int = 1

    @property
    def channel(self):
        return self


def new_job(account, num_tokens=10, *, priority=0, num_outputs=1, prompt=None):
    prompt = prompt or Prompt(tuple(range(num_tokens)))
    sequence = Sequence(
        "",
        prompt,
        SamplingParams(),
        priority=priority,
        max_tokens=num_outputs,
        scope=account.encode(),
    )
    return FakeJob(account, sequence, num_outputs)


@dataclass
class ServedQueue:
    """A simulated loop: the fair queue in front of the built-in scheduler."""

    max_running: int = 4
    max_step_tokens: int = 64
    queue: FairQueue = field(default_factory=FairQueue)
    jobs: dict = field(default_factory=dict)
    done: list = field(default_factory=list)
    got: Counter = field(default_factory=Counter)
    num_steps: int = 0

    def __post_init__(self):
        self.scheduler = ContinuousScheduler(
            SchedulerSettings(max_running=self.max_running, max_step_tokens=self.max_step_tokens,
                              max_waiting=100_000)
        )  # fmt: skip
        self.cache = StrictCache(
            EngineLimits(
                vocab_size=1000,
                max_sequences=1000,
                max_sequence_tokens=100_000,
                capacity_tokens=2**17,
                prefix_block_tokens=16,
                max_chunk_tokens=100_000,
                mixes_prefill_and_decode=True,
            )
        )

    def add(self, *jobs):
        self.jobs |= {job.sequence: job for job in jobs}
        self.queue.add(list(jobs))

    def step(self):
        for job in self.queue.next_jobs(self.scheduler.num_waiting):
            self.scheduler.add(job.sequence)
        step = self.scheduler.plan(self.cache)
        for item in step.items:
            self.cache.compute(item)
            self.got[self.jobs[item.sequence].account] += item.num_tokens
        is_answering = [item for item in step.items if item.stop == len(item.sequence)]
        self.scheduler.commit(step, 0.01)
        self.num_steps += 1
        for item in is_answering:
            item.sequence.output_ids.append(1)
            if len(item.sequence.output_ids) >= item.sequence.max_tokens:
                self.end(self.jobs[item.sequence])
        return bool(step.items)

    def end(self, job):
        if self.queue.remove(job):
            self.scheduler.remove(job.sequence, self.cache)
        del self.jobs[job.sequence]
        self.done.append(job)

    def run(self):
        while self.jobs:
            assert self.step(), "nothing runs although somebody waits"


def first_step(simulated, job):
    """Run until a request has its first token; return the number of steps."""
    began = simulated.num_steps
    while not job.sequence.output_ids:
        assert simulated.step()
    return simulated.num_steps - began


def test_a_new_tenant_does_not_wait_for_a_burst_of_long_prompts():
    for num_others in (1, 100):
        simulated = ServedQueue(max_step_tokens=1000)
        simulated.add(*[new_job("hog", 1000) for _ in range(num_others)])
        simulated.step()
        simulated.add(late := new_job("late", 100))
        assert first_step(simulated, late) <= 2


def test_a_new_tenant_is_admitted_although_a_burst_fills_the_scheduler():
    simulated = ServedQueue(max_running=8, max_step_tokens=1000)
    prompt = Prompt(tuple(range(100)))
    for _ in range(8):
        simulated.add(*[new_job("hog", prompt=prompt, num_outputs=4000) for _ in range(128)])
    for _ in range(20):
        simulated.step()
    assert simulated.scheduler.num_running == 8
    for _ in range(3):
        late = [new_job("late", 100, num_outputs=3) for _ in range(4)]
        simulated.add(*late)
        for job in late:
            assert first_step(simulated, job) <= 8


def test_a_tenant_with_much_past_usage_does_not_wait_for_a_new_one():
    simulated = ServedQueue(max_step_tokens=1000)
    simulated.add(long := new_job("old", 50_000, num_outputs=1000))
    first_step(simulated, long)
    simulated.add(*[new_job("new", 500) for _ in range(1000)])
    simulated.add(late := new_job("old", 500))
    assert first_step(simulated, late) <= 3
    for _ in range(10):  # the same again, with a little more usage
        simulated.add(late := new_job("old", 500))
        assert first_step(simulated, late) <= 1 + WINDOW_TOKENS // 500


def test_priority_orders_the_requests_of_one_tenant():
    simulated = ServedQueue(max_running=1)
    simulated.add(*[new_job("one", ALONE_WINDOW_TOKENS // 4, priority=5) for _ in range(9)])
    simulated.step()
    simulated.add(urgent := new_job("one", 10, priority=1))
    assert first_step(simulated, urgent) <= 2


def test_priorities_changed_by_the_scheduler_do_not_admit_more_jobs():
    queue = FairQueue()
    queue.add([new_job("one", 1000) for _ in range(100)])
    num_handed = 0
    for job in queue.next_jobs(0):
        job.sequence.priority = job.sequence.priority * 2**32 + 1000
        num_handed += 1
    assert num_handed == 1 + ALONE_WINDOW_TOKENS // 1000


def test_background_requests_run_last_although_their_tenant_used_least():
    simulated = ServedQueue(max_running=2)
    simulated.add(*[new_job("heavy", 100, num_outputs=50) for _ in range(4)])
    for _ in range(20):
        simulated.step()
    simulated.add(*[new_job("light", 10, priority=BACKGROUND) for _ in range(4)])
    simulated.add(*[new_job("heavy", 10) for _ in range(4)])
    simulated.run()
    assert [job.account for job in simulated.done] == ["heavy"] * 8 + ["light"] * 4


def test_an_interactive_request_preempts_a_background_one():
    simulated = ServedQueue(max_running=2)
    simulated.add(*[new_job("light", 10, priority=BACKGROUND, num_outputs=1000) for _ in range(4)])
    for _ in range(20):
        simulated.step()
    simulated.add(late := new_job("heavy", 10))
    assert first_step(simulated, late) <= 2


def test_background_requests_fill_only_what_interactive_ones_leave():
    simulated = ServedQueue(max_running=2, max_step_tokens=100)
    simulated.add(*[new_job("live", 100, num_outputs=5) for _ in range(20)])
    simulated.step()
    batch = [new_job("batch", 100, priority=BACKGROUND) for _ in range(5)]
    simulated.add(*batch)
    while any(job.account == "live" for job in simulated.jobs.values()):
        simulated.step()
    assert not any(job.sequence.output_ids for job in batch[1:])
    simulated.run()


def test_a_single_tenant_is_scheduled_as_without_a_fair_queue():
    simulated = ServedQueue(max_running=256, max_step_tokens=1024)
    simulated.add(*[new_job("one", 16, num_outputs=5) for _ in range(64)])
    simulated.step()
    assert simulated.scheduler.num_running == 64
    assert {each.priority for each in simulated.jobs} == {0}


def test_state_of_absent_tenants_is_forgotten():
    simulated = ServedQueue()
    for number in range(5000):
        simulated.add(new_job(f"{number}", 3))
        simulated.step()
    assert len(simulated.queue._idle) <= 1024
    simulated.run()
    assert (simulated.queue._accounts, simulated.queue._idle, simulated.queue.num_waiting) == (
        {},
        {},
        0,
    )


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(1, 300),  # tokens of the prompt
        st.integers(1, 20),  # and of the answer
        st.integers(0, 2),  # priority
        st.integers(1, 5),  # choices
        st.sampled_from(["come", "come", "come", "step", "go"]),
    ),
    max_size=60,
)


@given(ACTIONS, st.integers(1, 6), st.integers(16, 400))
@settings(max_examples=40)
def test_every_request_is_served_and_nothing_is_left(actions, max_running, max_step_tokens):
    simulated, expected = ServedQueue(max_running, max_step_tokens), 0
    for account, num_tokens, num_outputs, priority, num, move in actions:
        if move == "go" and simulated.jobs:
            simulated.end(next(iter(simulated.jobs.values())))
        elif move == "step" and simulated.jobs:
            simulated.step()
        else:
            prompt = Prompt(tuple(range(num_tokens)))
            simulated.add(
                *[
                    new_job(account, priority=priority, num_outputs=num_outputs, prompt=prompt)
                    for _ in range(num)
                ]
            )
            expected += num
    simulated.run()
    assert len(simulated.done) == expected
    assert (simulated.queue._accounts, simulated.queue.num_waiting) == ({}, 0)
    assert (simulated.scheduler.num_waiting, simulated.scheduler.num_running) == (0, 0)


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 30)), min_size=1, max_size=4),
    st.integers(2, 8),
)
@settings(max_examples=15)
@example([(140, 1), (140, 1)], 2)  # at equal usage, each preempts the other's prefill
def test_tenants_that_always_have_requests_get_equal_shares(kinds, max_running):
    """Their weighted tokens differ by a bound, for requests of any size."""
    simulated = ServedQueue(max_running, max_step_tokens=256)
    for number, (num_tokens, num_outputs) in enumerate(kinds):
        simulated.add(
            *[new_job(f"{number}", num_tokens, num_outputs=num_outputs) for _ in range(100)]
        )
    weighed = Counter()
    while max(Counter(job.account for job in simulated.done).values(), default=0) < 60:
        for _ in range(10):
            simulated.step()
    for job in [*simulated.done, *simulated.jobs.values()]:
        num_outputs = len(job.sequence.output_ids)
        if num_outputs:
            weighed[job.account] += job.sequence.num_prompt_tokens + OUTPUT_WEIGHT * num_outputs
    largest = max(num_tokens + OUTPUT_WEIGHT * num for num_tokens, num in kinds)
    got = [weighed[f"{number}"] for number in range(len(kinds))]
    window = WINDOW_TOKENS + largest  # the last prompt in it may begin at its end
    assert max(got) - min(got) <= 2 * window + max_running * largest


def test_one_tenant_cannot_fill_the_whole_queue():
    def request(text, account):
        return Request(messages=[Message("user", (TextPart(text),))], account=account)

    scheduler = ContinuousScheduler(SchedulerSettings(max_running=1, max_waiting=16))
    engine = MockEngine(MockEngineSettings())
    with Pipeline(tokenizer=MockTokenizer(), engine=engine, scheduler=scheduler) as runner:
        text = script(text="x", tokens=4000, latency_s=0.005)
        streams, num_refused = [], 0
        for _ in range(20):
            try:
                streams.append(runner.submit(request(text, "hog")))
            except QueueFull:
                num_refused += 1
            wait_until(lambda: runner.stats().num_running == 1)
        assert (len(streams), num_refused) == (15, 5)  # one runs, and an eighth of 16 is left
        streams.append(runner.submit(request("hello", "other")))
        assert streams[-1].result().choices[0].text
        for stream in streams:
            stream.abort()
        wait_until(lambda: runner._loop.num_jobs == runner._loop.num_waiting == 0)
