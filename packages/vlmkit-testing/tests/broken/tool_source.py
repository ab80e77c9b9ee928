"""Sources of tools that break one promise each, made of a toy's."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from honest.tool_source import TOOLS, WAIT_S, ToyTools

from broken.broken import Broken, Table
from vlmkit.errors import EngineError
from vlmkit.settings.images import ImageLimits
from vlmkit_testing import ToolSourceContract


class HasNothing(ToyTools):
    names = frozenset()  # type: ignore[assignment]


class NamesToolsInWords(ToyTools):
    names = frozenset({"say something"})  # type: ignore[assignment]


class ListsItsNames(ToyTools):
    @property
    def names(self) -> Any:
        return list(TOOLS)


class LearnsItsNames(ToyTools):
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


class TakesALetter(ChangedDefinition):
    def changed(self, function: dict[str, Any]) -> Any:
        return {**function, "parameters": {"type": "string"}}


class DescribesInPython(ChangedDefinition):
    def changed(self, function: dict[str, Any]) -> Any:
        return {**function, "description": len}


class DescribesTheMoment(ChangedDefinition):
    def changed(self, function: dict[str, Any]) -> Any:
        return {**function, "description": str(time.perf_counter_ns())}


class SaysNoType(ToyTools):
    async def describe(self, name: str) -> Mapping[str, Any]:
        stated = await super().describe(name)
        return {"type": "tool", "function": stated["function"]}


class ChangedCall(ToyTools):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        return await super().call(name, arguments, limits)


class BelievesTheModel(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        return await super().call(name, {"text": arguments["text"]}, limits)


class TakesArgumentsAway(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        if arguments:
            arguments.popitem()
        return await super().call(name, arguments, limits)


class SaysNoWordOfIt(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        try:
            return await super().call(name, arguments, limits)
        except EngineError:
            raise EngineError("") from None


class ReturnsAText(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        return [str(part) for part in await super().call(name, arguments, limits)]


class Yields(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        return iter(await super().call(name, arguments, limits))


class SaysNothing(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        await super().call(name, arguments, limits)
        return ()


class MindsNoLimits(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        return await super().call(name, arguments, ImageLimits())


class NeverEnds(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        if name == "wait":
            await asyncio.Event().wait()
        return await super().call(name, arguments, limits)


class HoldsUpEverybody(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        if name == "wait":
            time.sleep(1.0)  # noqa: ASYNC251 - that is what is wrong with it
        return await super().call(name, arguments, limits)


class DescribesSlowly(ToyTools):
    async def describe(self, name: str) -> Mapping[str, Any]:
        time.sleep(0.1 if self.beside else 0.3)  # noqa: ASYNC251 - as above
        return await super().describe(name)


class HearsNoCancel(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(WAIT_S)
                return await super().call(name, arguments, limits)
            await asyncio.shield(asyncio.Event().wait())


class BreaksWhenCancelled(ChangedCall):
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


class CrashesTheOthers(ChangedCall):
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


class ClosesOnce(ToyTools):
    is_closed = False

    async def aclose(self) -> None:
        assert not self.is_closed
        self.is_closed = True
        await super().aclose()


class LeavesSomethingBehind(ToyTools):
    async def aclose(self) -> None:
        pass

    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        await self.describe(name)
        return await super().call(name, arguments, limits)


class GoesOnWhenClosed(ChangedCall):
    async def call(self, name: str, arguments: Any, limits: ImageLimits) -> Any:
        await asyncio.sleep(9 if name == "wait" else 0)
        return await super().call(name, arguments, limits)


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
            HasNothing,
            "names says which tools a request may ask for.",
            "its_tools_have_names_that_models_can_write",
        ),
        Broken(
            NamesToolsInWords,
            "A tool's name is one that a model can write.",
            "its_tools_have_names_that_models_can_write",
        ),
        Broken(
            ListsItsNames,
            "names is a frozen set.",
            "its_tools_have_names_that_models_can_write",
        ),
        Broken(
            LearnsItsNames,
            "names is known without asking anybody.",
            "its_tools_have_names_that_models_can_write",
        ),
        Broken(
            DescribesByOtherNames,
            "A definition has its tool's name.",
            "each_tool_is_described_under_its_name",
        ),
        Broken(
            TakesALetter,
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
            DescribesTheMoment,
            "A definition is the same each time.",
            "each_tool_is_described_under_its_name",
        ),
        Broken(
            SaysNoType,
            "A definition is in OpenAI's form.",
            "each_tool_is_described_under_its_name",
        ),
        Broken(
            BelievesTheModel,
            "The arguments need not fit the definition.",
            "any_arguments_give_a_result_or_a_vlmkit_error",
            raises=(KeyError,),
        ),
        Broken(
            TakesArgumentsAway,
            "The arguments stay as they are.",
            "any_arguments_give_a_result_or_a_vlmkit_error",
        ),
        Broken(
            SaysNoWordOfIt,
            "The model is told what failed, in the error's words.",
            "any_arguments_give_a_result_or_a_vlmkit_error",
        ),
        Broken(
            ReturnsAText,
            "call() returns parts of a message.",
            "a_successful_call_returns_message_parts",
        ),
        Broken(Yields, "call() returns a sequence.", "a_successful_call_returns_message_parts"),
        Broken(
            SaysNothing,
            "call() returns what the tool says and shows.",
            "a_successful_call_returns_message_parts",
        ),
        Broken(
            MindsNoLimits,
            "The limits say which images are refused.",
            "no_image_exceeds_the_limits",
        ),
        Broken(
            NeverEnds,
            "A call bounds the time that it takes.",
            "no_call_exceeds_its_time_limit",
        ),
        Broken(
            HoldsUpEverybody,
            "What a call waits for holds up no other request.",
            "a_call_blocks_no_other",
        ),
        Broken(
            DescribesSlowly,
            "Nor does what a definition waits for.",
            "a_call_blocks_no_other",
        ),
        Broken(
            HearsNoCancel,
            "A call is cancelled when its result is not needed any more.",
            "concurrent_calls_end_and_a_cancelled_one_harms_no_other",
        ),
        Broken(
            BreaksWhenCancelled,
            "After a call that was cancelled, the next one works as before.",
            "concurrent_calls_end_and_a_cancelled_one_harms_no_other",
        ),
        Broken(
            CrashesTheOthers,
            "Several requests are served at once, each with its own call.",
            "concurrent_calls_end_and_a_cancelled_one_harms_no_other",
        ),
        Broken(
            ClosesOnce,
            "aclose() is harmless when done twice.",
            "closing_twice_is_harmless",
        ),
        Broken(
            LeavesSomethingBehind,
            "aclose() ends whatever runs beside the calls.",
            "closing_ends_running_calls",
        ),
        Broken(
            GoesOnWhenClosed,
            "aclose() ends the calls that run.",
            "closing_ends_running_calls",
        ),
    ),
)
