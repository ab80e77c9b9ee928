"""What every source of tools must do."""

import asyncio
import re
from collections.abc import Mapping, Sequence as Seq
from typing import Any

import msgspec
import pytest

from vlmkit.ask.message import ImagePart, TextPart
from vlmkit.ask.tool_choice import tool_name, tool_schema
from vlmkit.errors import VlmkitError
from vlmkit.seams.tool_source import ToolSource
from vlmkit.settings.images import ImageLimits

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NONSENSE: tuple[Mapping[str, Any], ...] = (
    {},
    {"": None, "\0": [[[]]]},
    {"x": "<|im_end|>" * 1000, "y": {"z": 10**30, "w": [1.5, None, True]}},
)


class ToolSourceContract:
    """Inherit, override :meth:`make`, and run pytest."""

    def make(self) -> ToolSource:
        """Return a source that has at least one tool."""
        raise NotImplementedError

    def test_its_tools_have_names_that_models_can_write(self) -> None:
        """Which are known before anything is started, and stay the same."""
        source = self.make()
        assert source.names
        assert all(NAME.fullmatch(name) for name in source.names)
        assert source.names == self.make().names

    def test_each_tool_is_described_under_its_name(self) -> None:
        """As a function whose arguments are an object, in JSON."""

        async def described(source: ToolSource) -> list[Mapping[str, Any]]:
            return [await source.describe(name) for name in sorted(source.names)]

        definitions = self._with(described)
        assert [tool_name(each) for each in definitions] == sorted(self.make().names)
        assert all(tool_schema(each).get("type") == "object" for each in definitions)
        assert msgspec.json.encode(definitions)

    @pytest.mark.parametrize("arguments", NONSENSE)
    def test_whatever_a_model_writes_gets_a_result_or_an_error_of_ours(
        self, arguments: Mapping[str, Any]
    ) -> None:
        """A VlmkitError is told to the model; any other exception is a crash."""

        async def called(source: ToolSource) -> list[Seq[TextPart | ImagePart]]:
            results: list[Seq[TextPart | ImagePart]] = []
            for name in source.names:
                try:
                    results.append(await source.call(name, arguments, ImageLimits()))
                except VlmkitError as error:
                    assert str(error)
            return results

        for result in self._with(called):
            assert all(isinstance(part, TextPart | ImagePart) for part in result)

    def test_calls_side_by_side_end_and_who_is_cancelled_harms_no_other(self) -> None:
        """Each request has its own."""

        async def called(source: ToolSource) -> list[Any]:
            name = min(source.names)
            calls = [asyncio.ensure_future(source.call(name, {}, ImageLimits())) for _ in range(4)]
            await asyncio.sleep(0)
            calls[0].cancel()
            return await asyncio.gather(*calls, return_exceptions=True)

        first, *others = self._with(called)
        assert not isinstance(first, Exception) or isinstance(first, VlmkitError)
        errors = [each for each in others if isinstance(each, BaseException)]
        assert all(isinstance(error, VlmkitError) for error in errors)

    def test_closing_twice_is_harmless(self) -> None:
        """Also of a source that was never used."""

        async def closed() -> None:
            source = self.make()
            await source.aclose()
            await source.aclose()

        asyncio.run(closed())

    def _with(self, work: Any) -> Any:
        """Return what comes of some work with a fresh source, which is closed then."""

        async def run() -> Any:
            source = self.make()
            try:
                return await work(source)
            finally:
                await source.aclose()

        return asyncio.run(run())
