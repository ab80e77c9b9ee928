"""The fleet under random orders of requests, loads, unloads, disconnects and failures."""

import asyncio
from collections import Counter
from unittest import mock

from hypothesis import given, settings, strategies as st
from mock_loader import MockLoader
from running_server import eventually, scripted

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.observer import Observer
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_server.fleet import load_thread
from vlmkit_server.fleet.fleet import Fleet
from vlmkit_server.fleet.model_registry import ModelRegistry
from vlmkit_server.settings.fleet import FleetSettings

SIZES = {"a": 1, "b": 2, "c": 3, "d": 4}
BUDGET_BYTES = 4
names = st.sampled_from(sorted(SIZES))
steps = st.one_of(
    st.tuples(st.just("ask"), names, st.integers(1, 30)),
    st.tuples(st.just("give up"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["load", "unload", "hold", "let go", "break", "mend"]), names),
    st.tuples(st.just("look away"), st.integers(0, 3)),
)


class Ends(Observer):
    """Counts how often each request begins and ends."""

    def __init__(self):
        self.begun = Counter()
        self.ended = Counter()

    def accepted(self, request, at_s):
        self.begun[request.id] += 1

    def finished(self, request, end, at_s):
        self.ended[request.id] += 1

    def failed(self, request, error, at_s):
        self.ended[request.id] += 1


class FleetSimulation:
    """A fleet and its clients."""

    def __init__(self, models, fleet, loader):
        self.models = models
        self.fleet = fleet
        self.loader = loader
        self.asking = []
        self.managing = []
        self.outcomes = Counter()
        self.codes = set()

    async def ask(self, number, name, tokens):
        text = scripted(text=name, tokens=tokens)
        request = Request(messages=[Message.of("user", text)], id=f"req-{number}")
        try:
            async with self.fleet.leased(name, lambda num_waiting: None) as runner:
                assert self.models[name].runner is runner
                answer = await (await runner.asubmit(request)).aresult()
                assert answer.text == name * tokens
        except VlmkitError as error:
            self.codes.add(error.code)
        finally:
            self.outcomes[number] += 1

    async def manage(self, what, name):
        try:
            await getattr(self.fleet.control, what)(self.models[name])
        except VlmkitError as error:
            self.codes.add(error.code)

    async def do(self, step):
        match step:
            case ("ask", name, tokens):
                asking_task = self.ask(len(self.asking), name, tokens)
                self.asking.append(asyncio.ensure_future(asking_task))
            case ("give up", number) if number < len(self.asking):
                self.asking[number].cancel()
            case ("load" | "unload" as what, name):
                self.managing.append(asyncio.ensure_future(self.manage(what, name)))
            case ("hold", name):
                self.loader.block(name)
            case ("let go", name):
                self.loader.release(name)
            case ("break" | "mend" as what, name):
                self.loader.set_broken(name, is_broken=what == "break")
            case ("look away", number):
                await asyncio.sleep(number / 1000)
        await asyncio.sleep(0)

    async def end(self):
        for name in SIZES:
            self.loader.release(name)
        await asyncio.gather(*self.asking, *self.managing, return_exceptions=True)
        unstarted = sum(task.cancelled() for task in self.asking)
        assert len(self.outcomes) >= len(self.asking) - unstarted
        for task in [*self.asking, *self.managing]:
            assert task.cancelled() or task.exception() is None
        for model in self.models.values():
            assert (model.num_users, model.num_waiting) == (0, 0)


def pipeline(ends):
    return Pipeline(
        tokenizer=MockTokenizer(),
        engine=MockEngine(MockEngineSettings()),
        observers={"ends": ends},
    )


async def play(orders, simulation):
    for step in orders:
        await simulation.do(step)
    await simulation.end()
    models, fleet, loader = simulation.models, simulation.fleet, simulation.loader
    for name in SIZES:  # after any order, each model can be loaded, used and unloaded
        loader.set_broken(name, is_broken=False)
        await fleet.control.load(models[name])
        await simulation.ask(name, name, 3)
        await fleet.control.unload(models[name])
        assert models[name].state == "unloaded"
    for name in SIZES:
        await fleet.control.unload(models[name])
    assert loader.loaded_bytes == 0
    return simulation


@given(orders=st.lists(steps, max_size=40))
@settings(max_examples=settings.default.max_examples // 5)
def test_no_request_is_lost_or_ended_twice_and_the_memory_budget_holds(orders):
    ends = Ends()
    loader = MockLoader(lambda: pipeline(ends))
    specs = {name: loader.spec(name, size) for name, size in SIZES.items()}
    budget = FleetSettings(load="use", memory_budget_bytes=BUDGET_BYTES)
    registry = ModelRegistry(specs, budget)
    fleet = Fleet(registry, budget)
    try:
        # A full garbage collection is slow in a test process.
        with mock.patch.object(load_thread, "_give_back", return_value=None):
            simulation = asyncio.run(play(orders, FleetSimulation(registry.models, fleet, loader)))
    finally:
        for name in SIZES:
            loader.release(name)
        fleet.close()
    assert loader.max_loaded_bytes <= BUDGET_BYTES
    assert set(simulation.outcomes.values()) <= {1}
    assert simulation.codes <= {"model_failed", "model_unloaded"}
    # Observers receive events late, and a refused request ends without beginning.
    assert eventually(lambda: not ends.begun - ends.ended)
    assert set(ends.ended.values()) <= {1}
    assert fleet.recovery.error is None
