"""What every source of tools must do."""

import asyncio
import contextlib
import copy
import functools
import itertools
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence as Seq
from typing import Any

import msgspec
import pytest

from vlmkit.errors import VlmkitError
from vlmkit.settings.images import ImageLimits
from vlmkit.types.message import ImagePart, TextPart
from vlmkit.types.tool_choice import tool_name, tool_schema
from vlmkit_server.interfaces.tool_source import ToolSource
from vlmkit_testing.contracts.tool_arguments import Arguments, arguments_of, varied

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NONSENSE: tuple[Mapping[str, Any], ...] = (
    {},
    {"": None, "\0": [[[]]]},
    {"x": "<|im_end|>" * 1000, "y": {"z": 10**30, "w": [1.5, None, True]}},
)
TICK_S, HELD_S = 0.01, 0.25
NUM_TRIES = 6  # a busy machine holds everybody up now and then
NUM_CALLS = 6  # of each tool, with other arguments
NUM_LOST = 70  # calls that fail or are cancelled; more than any likely number of permits
TINY = ImageLimits(max_bytes=1, max_pixels=4)

Result = Seq[TextPart | ImagePart]
Call = tuple[str, Arguments]
Outcome = tuple[object, ...]


class ToolSourceContract:
    """Inherit it, override :meth:`make`, and run pytest.

    Attributes:
        max_call_s: the longest time that a call of these tools may take.
    """

    max_call_s = 60.0

    def make(self) -> ToolSource:
        """Return a source with at least one tool."""
        raise NotImplementedError

    def arguments(self) -> Mapping[str, Mapping[str, Any]]:
        """Return arguments with which a call succeeds, for each tool to try.

        Tests also call these tools with other values of the same types, and concurrently. A tool
        that is not named gets arguments that its schema allows.
        """
        return {}

    def test_its_tools_have_names_that_models_can_write(self) -> None:
        """They are known before the source is started, and never change."""
        source = self.make()
        assert source.names
        assert isinstance(source.names, frozenset)
        assert all(NAME.fullmatch(name) for name in source.names)
        assert source.names == self.make().names

        async def used(source: ToolSource) -> frozenset[str]:
            for name in source.names:
                await source.describe(name)
            return source.names

        assert self._with(used) == source.names

    def test_each_tool_is_described_under_its_name(self) -> None:
        """As a function with a JSON object of arguments, the same each time."""

        async def described(source: ToolSource) -> list[list[Mapping[str, Any]]]:
            names = sorted(source.names)
            return [[await source.describe(name) for name in names] for _ in range(2)]

        definitions, again = self._with(described)
        assert definitions == again
        assert [tool_name(each) for each in definitions] == sorted(self.make().names)
        assert all(each["type"] == "function" for each in definitions)
        assert all(tool_schema(each).get("type") == "object" for each in definitions)
        assert msgspec.json.encode(definitions)

    def test_tools_are_described_to_several_requests_at_once(self) -> None:
        """A description that a request no longer needs is cancelled, which harms no other."""

        async def described(source: ToolSource) -> list[Mapping[str, Any]]:
            names = sorted(source.names) * 2
            return list(await asyncio.gather(*map(source.describe, names)))

        async def after_cancelling(source: ToolSource, num_steps: int) -> bool:
            for name in source.names:
                lost = asyncio.ensure_future(source.describe(name))
                for _ in range(num_steps):
                    await asyncio.sleep(0)
                lost.cancel()
                await asyncio.wait([lost])
            again = asyncio.ensure_future(described(source))
            await asyncio.wait([again], timeout=self.max_call_s)
            is_ended = again.done() and not again.cancelled() and again.exception() is None
            again.cancel()
            return is_ended

        for num_steps in range(4):
            work = functools.partial(after_cancelling, num_steps=num_steps)
            assert self._with(work), "a tool is not described after a cancelled description"
        assert [tool_name(each) for each in self._with(described)] == sorted(self.make().names) * 2

    # Calls

    @pytest.mark.parametrize("arguments", NONSENSE)
    def test_any_arguments_give_a_result_or_a_vlmkit_error(
        self, arguments: Mapping[str, Any]
    ) -> None:
        """The only exception is a VlmkitError, which the model gets as a result."""
        given = copy.deepcopy(arguments)

        async def called(source: ToolSource) -> list[Result]:
            results: list[Result] = []
            for name in source.names:
                try:
                    results.append(await source.call(name, given, ImageLimits()))
                except VlmkitError as error:
                    assert str(error)
            return results

        _check_parts(self._with(called))
        assert given == arguments

    def test_a_successful_call_returns_message_parts(self) -> None:
        """Text and images, in order."""
        known = self._known()

        async def called(source: ToolSource) -> list[Result]:
            return [await source.call(name, given, ImageLimits()) for name, given in known.items()]

        results = self._with(called)
        _check_parts(results)
        assert all(len(result) > 0 for result in results)

    def test_no_image_exceeds_the_limits(self) -> None:
        """It is refused, and the model gets the error, whatever limits other calls have."""
        known = self._known()

        async def called(source: ToolSource) -> list[Result]:
            results: list[Result] = []
            for name, given in known.items():
                for _ in range(2):
                    with contextlib.suppress(VlmkitError):
                        results.append(await source.call(name, given, TINY))
                    assert await source.call(name, given, ImageLimits())
            return results

        results = self._with(called)
        _check_parts(results)
        images = [p.image for parts in results for p in parts if isinstance(p, ImagePart)]
        assert all(image.width * image.height <= TINY.max_pixels for image in images)

    def test_no_call_exceeds_its_time_limit(self) -> None:
        """The server does not cancel it."""

        async def called(source: ToolSource) -> None:
            for name in source.names:
                try:
                    await asyncio.wait_for(self._outcome(source, name), timeout=self.max_call_s)
                except TimeoutError:
                    pytest.fail(f"a call takes more than {self.max_call_s} s")

        self._with(called)

    def test_a_call_blocks_no_other(self) -> None:
        """It awaits in the event loop and computes in a thread, so the server keeps answering."""

        async def longest(source: ToolSource) -> float:
            """Return the loop's longest pause, less a thread's: a busy machine delays both."""
            gaps, thread_gaps = [0.0], [0.0]
            is_over = threading.Event()

            async def tick() -> None:
                while True:
                    began = time.perf_counter()
                    await asyncio.sleep(TICK_S)
                    gaps.append(time.perf_counter() - began)

            def tick_in_a_thread() -> None:
                while not is_over.is_set():
                    began = time.perf_counter()
                    time.sleep(TICK_S)
                    thread_gaps.append(time.perf_counter() - began)

            thread = threading.Thread(target=tick_in_a_thread, daemon=True)
            thread.start()
            ticking = asyncio.ensure_future(tick())
            await asyncio.sleep(2 * TICK_S)
            for name in source.names:
                await source.describe(name)
                await self._outcome(source, name)
            await asyncio.sleep(2 * TICK_S)
            ticking.cancel()
            is_over.set()
            return max(gaps) - max(thread_gaps)

        assert any(self._with(longest) < HELD_S for _ in range(NUM_TRIES))

    def test_concurrent_calls_end_and_a_cancelled_one_harms_no_other(self) -> None:
        """Later calls succeed like the first."""

        async def called(source: ToolSource) -> tuple[bool, list[Any], bool]:
            name = min(self.arguments() or source.names)
            before = await self._outcome(source, name)
            calls = [asyncio.ensure_future(self._known_call(source, name)) for _ in range(4)]
            await asyncio.sleep(0)
            calls[0].cancel()
            _, running = await asyncio.wait(calls, timeout=self.max_call_s)
            for call in running:
                call.cancel()
            assert not running, "a call that was cancelled goes on"
            told = [_error_of(call) for call in calls]
            return before, told, await self._outcome(source, name)

        before, (first, *others), after = self._with(called)
        assert not isinstance(first, Exception) or isinstance(first, VlmkitError)
        errors = [each for each in others if each is not None]
        assert all(isinstance(error, VlmkitError) for error in errors)
        assert before == after

    def test_concurrent_calls_get_their_own_results(self) -> None:
        """With other arguments for each call, in any order, they are those of single calls.

        And those of the first calls of a new source.
        """

        async def compared(source: ToolSource) -> tuple[int, list[tuple[Call, Outcome, Outcome]]]:
            calls = await self._calls(source)
            alone = [await _outcome_of(source, call) for call in calls]
            again = [await _outcome_of(source, call) for call in calls]
            steady = [n for n, (a, b) in enumerate(zip(alone, again, strict=True)) if a == b]
            found = []
            for order in (steady, steady[::-1], steady[::2] + steady[1::2]):
                given = [copy.deepcopy(calls[number]) for number in order]
                results = await asyncio.gather(*(_outcome_of(source, call) for call in given))
                found += [
                    (calls[number], alone[number], result)
                    for number, result in zip(order, results, strict=True)
                ]
            names = {calls[number][0] for number in steady}
            told = {name: {alone[n] for n in steady if calls[n][0] == name} for name in names}
            return max(map(len, told.values()), default=0), found

        async def first(source: ToolSource) -> list[tuple[Call, Outcome]]:
            calls = (await self._calls(source))[1::NUM_CALLS]
            return [(call, await _outcome_of(source, call)) for call in calls]

        num_results, found = self._with(compared)
        known = {repr(call): expected for call, expected, _ in found}
        for call, result in self._with(first):
            assert known.get(repr(call), result) == result, f"{call} has the result of another call"
        for call, expected, result in found:
            assert result == expected, f"beside other calls, {call} has another result"
        if num_results < 2:
            pytest.skip("no other arguments change a result; override arguments() to try some")

    def test_lost_calls_hold_nothing(self) -> None:
        """However many were cancelled or failed: neither a connection nor a permit.

        A cancelled call ends as cancelled, which is neither a result nor an error.
        """

        async def called(source: ToolSource) -> tuple[list[Outcome], list[Outcome]]:
            calls = (await self._calls(source))[::NUM_CALLS]
            before = [await _outcome_of(source, call) for call in calls]
            num_tasks = len(asyncio.all_tasks())
            for number in range(NUM_LOST):
                name, given = calls[number % len(calls)]
                wrong = {"": None} if number % 2 else given
                lost = asyncio.ensure_future(_outcome_of(source, (name, wrong)))
                for _ in range(number % 5):
                    await asyncio.sleep(0)
                was_running = lost.cancel()
                await asyncio.wait([lost], timeout=self.max_call_s)
                assert lost.cancelled() or not was_running, "a call hides that it was cancelled"
            after = asyncio.gather(*(_outcome_of(source, call) for call in calls))
            results = await asyncio.wait_for(after, self.max_call_s)
            deadline = time.monotonic() + self.max_call_s
            while len(asyncio.all_tasks()) > num_tasks and time.monotonic() < deadline:  # noqa: ASYNC110 - of any task
                await asyncio.sleep(TICK_S)
            assert len(asyncio.all_tasks()) <= num_tasks, "something of a lost call goes on"
            return before, results

        try:
            before, after = self._with(called)
        except TimeoutError:
            pytest.fail("calls do not return after others were lost")
        assert [each[0] for each in after] == [each[0] for each in before]

    # The end

    def test_closing_twice_is_harmless(self) -> None:
        """Also if it was never used, and while the first call runs."""

        async def closed() -> None:
            source = self.make()
            await source.aclose()
            await source.aclose()
            used = self.make()
            for name in used.names:
                await used.describe(name)
            await asyncio.gather(used.aclose(), used.aclose())

        asyncio.run(closed())

    def test_closing_ends_running_calls(self) -> None:
        """And everything that the source started beside them."""

        async def closed() -> None:
            before = asyncio.all_tasks()
            source = self.make()
            calls = [asyncio.ensure_future(self._outcome(source, name)) for name in source.names]
            await asyncio.sleep(TICK_S)
            await source.aclose()
            _, running = await asyncio.wait(calls, timeout=self.max_call_s)
            await asyncio.sleep(TICK_S)
            left = asyncio.all_tasks() - before
            for task in left:
                task.cancel()
            assert not running, "a call goes on when its source is closed"
            assert not left, "something that the source began goes on when it is closed"

        asyncio.run(closed())

    # Helpers

    def _with(self, work: Callable[[ToolSource], Awaitable[Any]]) -> Any:
        """Return the result of some work with a new source, and close it."""

        async def run() -> Any:
            source = self.make()
            try:
                return await work(source)
            finally:
                await source.aclose()

        return asyncio.run(run())

    def _known(self) -> Mapping[str, Mapping[str, Any]]:
        if not self.arguments():
            pytest.skip("override arguments() to run this test")
        return self.arguments()

    async def _calls(self, source: ToolSource) -> list[Call]:
        """Return calls of each tool, with other arguments each."""
        calls: list[Call] = []
        for name in sorted(source.names):
            schema = tool_schema(await source.describe(name))
            known = self.arguments().get(name)
            given = arguments_of(schema) if known is None else known
            calls += [(name, each) for each in itertools.islice(varied(given, schema), NUM_CALLS)]
        return calls

    async def _known_call(self, source: ToolSource, name: str) -> Result:
        return await source.call(name, self.arguments().get(name, {}), ImageLimits())

    async def _outcome(self, source: ToolSource, name: str) -> bool:
        """Return whether a call works; raises no error of ours."""
        try:
            await self._known_call(source, name)
        except VlmkitError:
            return False
        return True


async def _outcome_of(source: ToolSource, call: Call) -> Outcome:
    """Return what a call returns or raises, as values that can be compared."""
    name, arguments = call
    try:
        parts = await source.call(name, arguments, ImageLimits())
    except VlmkitError as error:
        return "error", type(error), str(error)
    content = [p.text if isinstance(p, TextPart) else p.image.digest for p in parts]
    return "result", *content


def _check_parts(results: Seq[Result]) -> None:
    for result in results:
        assert isinstance(result, Seq)
        assert all(isinstance(part, TextPart | ImagePart) for part in result)


def _error_of(call: "asyncio.Future[Any]") -> BaseException | None:
    """Return how a call failed; None for one that worked or was cancelled."""
    return None if call.cancelled() else call.exception()
