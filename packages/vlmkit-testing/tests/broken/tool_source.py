"""Tool sources that break one promise each, derived from a toy source."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from honest.tool_source import TOOLS, WAIT_S, ToyTools

from broken.broken import Broken, Table
from vlmkit.errors import EngineError, VlmkitError
from vlmkit.settings.images import ImageLimits
from vlmkit_testing import ToolSourceContract


class HasNoTools(ToyTools):
    names = frozenset()  # type: ignore[assignment]


class NamesToolsWithSpaces(ToyTools):
    names = frozenset({"say something"})  # type: ignore[assignment]


class ListsItsNames(ToyTools):
    @property
    def names(self) -> Any:
        return list(TOOLS)


class FetchesItsNames(ToyTools):
    @property
    def names(self) -> frozenset[str]:
        return frozenset(TOOLS[:2] if self.beside is None else TOOLS)


class ChangedDefinition(ToyTools):
    def changed(self, function: dict[str, Any]) -> Any:
        raise NotImplementedError

    async def describe(self, name: str) -> Mapping[str, Any]:
        stated = await super().describe(name)
        return {"type": "function", "function": self.changed(dict(stated["function"]))}


class DescribesByOtherNames(ChangedDefinition):
    def changed(self, function: dict[str, Any]) -> Any:
        return {**function, "name": f"toy_{function['name']}"}


class TakesAString(ChangedDefinition):
    def changed(self, function: dict[str, Any]) -> Any:
        return {**function, "parameters": {"type": "string"}}


class DescribesInPython(ChangedDefinition):
    def changed(self, function: dict[str, Any]) -> Any:
        return {**function, "description": len}


class DescribesTheCurrentTime(ChangedDefinition):
    def changed(self, function: dict[str, Any]) -> Any:
        return {**function, "description": str(time.perf_counter_ns())}


class OmitsTheType(ToyTools):
    async def describe(self, name: str) -> Mapping[str, Any]:
        stated = await super().describe(name)
        return {"type": "tool", "function": stated["function"]}


class ChangedCall(ToyTools):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        return await super().call(name, arguments, limits)


class TrustsArguments(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        return await super().call(name, {"text": arguments["text"]}, limits)


class ModifiesArguments(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        if arguments:
            arguments.popitem()
        return await super().call(name, arguments, limits)


class HidesErrorMessages(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        try:
            return await super().call(name, arguments, limits)
        except EngineError:
            raise EngineError("") from None


class ReturnsAString(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        return [str(part) for part in await super().call(name, arguments, limits)]


class Yields(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        return iter(await super().call(name, arguments, limits))


class ReturnsNothing(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        await super().call(name, arguments, limits)
        return ()


class IgnoresLimits(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        return await super().call(name, arguments, ImageLimits())


class NeverEnds(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        if name == "wait":
            await asyncio.Event().wait()
        return await super().call(name, arguments, limits)


class BlocksTheEventLoop(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        if name == "wait":
            time.sleep(1.0)  # noqa: ASYNC251 - that is what is wrong with it
        return await super().call(name, arguments, limits)


class DescribesSlowly(ToyTools):
    async def describe(self, name: str) -> Mapping[str, Any]:
        time.sleep(0.1 if self.beside else 0.3)  # noqa: ASYNC251 - as above
        return await super().describe(name)


class IgnoresCancellation(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(WAIT_S)
                return await super().call(name, arguments, limits)
            await asyncio.shield(asyncio.Event().wait())


class BreaksAfterACancellation(ChangedCall):
    is_broken = False

    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        if self.is_broken:
            raise EngineError("the connection is closed")
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            self.is_broken = True
            raise
        return await super().call(name, arguments, limits)


class FailsConcurrentCalls(ChangedCall):
    is_cancelled = False

    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        if self.is_cancelled:
            self.is_cancelled = False
            raise RuntimeError("cannot write any more")
        return await super().call(name, arguments, limits)


class MixesArguments(ChangedCall):
    """Keeps the arguments of a call in an attribute while it waits."""

    given: Any = None

    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        self.given = arguments
        await asyncio.sleep(0)
        return await super().call(name, self.given, limits)


class CachesByNames(ChangedCall):
    """Caches results by the names of arguments, not by their values."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Any, Any] = {}

    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        key = (name, *sorted(arguments))
        if key not in self.known:
            self.known[key] = await super().call(name, arguments, limits)
        return self.known[key]


class KeepsPermitsOfCancelledCalls(ChangedCall):
    def __init__(self) -> None:
        super().__init__()
        self.permits = asyncio.Semaphore(16)

    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        await self.permits.acquire()
        try:
            result = await super().call(name, arguments, limits)
        except Exception:
            self.permits.release()
            raise
        self.permits.release()
        return result


class FailsOnASecondClose(ToyTools):
    is_closed = False

    async def aclose(self) -> None:
        assert not self.is_closed
        self.is_closed = True
        await super().aclose()


class LeavesABackgroundTask(ToyTools):
    async def aclose(self) -> None:
        pass

    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        await self.describe(name)
        return await super().call(name, arguments, limits)


class ContinuesAfterClosing(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        await asyncio.sleep(9 if name == "wait" else 0)
        return await super().call(name, arguments, limits)


class HidesItsCancellation(ToyTools):
    async def call(self, name: str, arguments: Mapping[str, Any], limits: ImageLimits) -> Any:
        await asyncio.sleep(0)
        try:
            await asyncio.sleep(0.01)
        except BaseException as error:
            raise EngineError("the tool failed") from error
        return await super().call(name, arguments, limits)


class KeepsTheFirstLimits(ChangedCall):
    limits: ImageLimits | None = None

    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        self.limits = self.limits or limits
        return await super().call(name, arguments, self.limits)


class KeepsResults(ChangedCall):
    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Any] = {}

    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        key = f"{name} {arguments}"
        if key not in self.results:
            self.results[key] = await super().call(name, arguments, limits)
        return self.results[key]


class SharesDescriptions(ToyTools):
    def __init__(self) -> None:
        super().__init__()
        self.described: dict[str, asyncio.Task[Mapping[str, Any]]] = {}

    async def describe(self, name: str) -> Mapping[str, Any]:
        if name not in self.described:
            self.described[name] = asyncio.ensure_future(self.fetched(name))
        return await self.described[name]

    async def fetched(self, name: str) -> Mapping[str, Any]:
        await asyncio.sleep(0.001)
        return await super().describe(name)


class DescribesTheNewestTool(ToyTools):
    newest = ""

    async def describe(self, name: str) -> Mapping[str, Any]:
        self.newest = name
        await asyncio.sleep(0)
        return await super().describe(self.newest)


class ClosesOneAtATime(ToyTools):
    async def aclose(self) -> None:
        if self.beside is not None:
            self.beside.cancel()
            await asyncio.wait([self.beside])
            assert self.beside is not None
            self.beside = None


class LeavesATaskOfLostCalls(ChangedCall):
    def __init__(self) -> None:
        super().__init__()
        self.left: set[asyncio.Task[None]] = set()

    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        try:
            return await super().call(name, arguments, limits)
        except asyncio.CancelledError:
            self.left.add(asyncio.ensure_future(self.run_beside()))
            raise

    async def aclose(self) -> None:
        for task in self.left:
            task.cancel()
        await super().aclose()


class OnTools(ToolSourceContract):
    max_call_s = 2.0

    def __init__(self, kind: type[ToyTools]) -> None:
        self._kind = kind

    def make(self) -> ToyTools:
        return self._kind()

    def arguments(self) -> dict[str, dict[str, Any]]:
        return {name: {"text": "so it is"} for name in TOOLS}


TABLE = Table(
    ToolSourceContract,
    OnTools,
    ToyTools,
    (
        Broken(
            HasNoTools,
            "names lists the tools that a request may use.",
            "its_tools_have_names_that_models_can_write",
        ),
        Broken(
            NamesToolsWithSpaces,
            "The name of a tool can be written by a model.",
            "its_tools_have_names_that_models_can_write",
        ),
        Broken(
            ListsItsNames,
            "names is a frozen set.",
            "its_tools_have_names_that_models_can_write",
        ),
        Broken(
            FetchesItsNames,
            "names is known without a call to a server.",
            "its_tools_have_names_that_models_can_write",
        ),
        Broken(
            DescribesByOtherNames,
            "A definition has the name of its tool.",
            "each_tool_is_described_under_its_name",
        ),
        Broken(
            TakesAString,
            "The arguments of a tool are an object.",
            "each_tool_is_described_under_its_name",
        ),
        Broken(
            DescribesInPython,
            "A definition can be written as JSON.",
            "each_tool_is_described_under_its_name",
            raises=(TypeError,),
        ),
        Broken(
            DescribesTheCurrentTime,
            "A definition is the same each time.",
            "each_tool_is_described_under_its_name",
        ),
        Broken(
            OmitsTheType,
            "A definition is in OpenAI's form.",
            "each_tool_is_described_under_its_name",
        ),
        Broken(
            TrustsArguments,
            "Arguments may violate the definition.",
            "any_arguments_give_a_result_or_a_vlmkit_error",
            raises=(KeyError,),
        ),
        Broken(
            ModifiesArguments,
            "Arguments are not modified.",
            "any_arguments_give_a_result_or_a_vlmkit_error",
        ),
        Broken(
            HidesErrorMessages,
            "The error message of a failed tool reaches the model.",
            "any_arguments_give_a_result_or_a_vlmkit_error",
        ),
        Broken(
            ReturnsAString,
            "call() returns parts of a message.",
            "a_successful_call_returns_message_parts",
        ),
        Broken(Yields, "call() returns a sequence.", "a_successful_call_returns_message_parts"),
        Broken(
            ReturnsNothing,
            "call() returns the texts and images of the tool.",
            "a_successful_call_returns_message_parts",
        ),
        Broken(
            IgnoresLimits,
            "Images over the limits are refused.",
            "no_image_exceeds_the_limits",
        ),
        Broken(
            NeverEnds,
            "A call ends within its time limit.",
            "no_call_exceeds_its_time_limit",
        ),
        Broken(
            BlocksTheEventLoop,
            "A waiting call does not block other requests.",
            "a_call_blocks_no_other",
        ),
        Broken(
            DescribesSlowly,
            "A waiting definition does not block other requests.",
            "a_call_blocks_no_other",
        ),
        Broken(
            IgnoresCancellation,
            "A call can be cancelled.",
            "concurrent_calls_end_and_a_cancelled_one_harms_no_other",
        ),
        Broken(
            BreaksAfterACancellation,
            "A call works after a cancelled one.",
            "concurrent_calls_end_and_a_cancelled_one_harms_no_other",
        ),
        Broken(
            FailsConcurrentCalls,
            "Concurrent calls do not affect each other.",
            "concurrent_calls_end_and_a_cancelled_one_harms_no_other",
        ),
        Broken(
            MixesArguments,
            "A call has the result of its own arguments.",
            "concurrent_calls_get_their_own_results",
        ),
        Broken(
            CachesByNames,
            "Other arguments may have another result.",
            "concurrent_calls_get_their_own_results",
        ),
        Broken(
            HidesItsCancellation,
            "A call that is cancelled ends as cancelled.",
            "lost_calls_hold_nothing",
        ),
        Broken(
            KeepsPermitsOfCancelledCalls,
            "A cancelled call holds nothing.",
            "lost_calls_hold_nothing",
        ),
        Broken(
            FailsOnASecondClose,
            "aclose() may be called twice.",
            "closing_twice_is_harmless",
        ),
        Broken(
            LeavesABackgroundTask,
            "aclose() ends background tasks.",
            "closing_ends_running_calls",
        ),
        Broken(
            ContinuesAfterClosing,
            "aclose() ends running calls.",
            "closing_ends_running_calls",
        ),
        Broken(
            KeepsTheFirstLimits,
            "A call has its own limits for images.",
            "no_image_exceeds_the_limits",
            raises=(VlmkitError,),
        ),
        Broken(
            KeepsResults,
            "The images of a call are within its own limits.",
            "no_image_exceeds_the_limits",
        ),
        Broken(
            SharesDescriptions,
            "A cancelled description harms no other.",
            "tools_are_described_to_several_requests_at_once",
        ),
        Broken(
            DescribesTheNewestTool,
            "Methods run for several requests at once.",
            "tools_are_described_to_several_requests_at_once",
        ),
        Broken(
            LeavesATaskOfLostCalls,
            "Nothing of a cancelled call goes on.",
            "lost_calls_hold_nothing",
        ),
        Broken(
            ClosesOneAtATime,
            "A second aclose() does nothing, also while the first one runs.",
            "closing_twice_is_harmless",
        ),
    ),
)
