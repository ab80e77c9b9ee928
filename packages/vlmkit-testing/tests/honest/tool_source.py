"""A tool source with texts, images and a background task, and one that never says the same."""

import asyncio
from collections.abc import Mapping, Sequence as Seq
from typing import Any

from vlmkit.errors import EngineError
from vlmkit.settings.images import ImageLimits
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, TextPart
from vlmkit_testing import picture

TOOLS = ("say", "show", "wait")
WAIT_S = 0.05


class ToyTools:
    """Three tools."""

    def __init__(self) -> None:
        self.beside: asyncio.Task[None] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names of all tools."""
        return frozenset(TOOLS)

    async def describe(self, name: str) -> Mapping[str, Any]:
        """Return the definition of a tool."""
        if self.beside is None:
            self.beside = asyncio.ensure_future(self.run_beside())
        takes = {"type": "object", "properties": {"text": {"type": "string"}}}
        return {"type": "function", "function": {"name": name, "parameters": takes}}

    async def run_beside(self) -> None:
        """Run a background task until the source is closed."""
        await asyncio.Event().wait()

    async def call(
        self, name: str, arguments: Mapping[str, Any], limits: ImageLimits
    ) -> Seq[TextPart | ImagePart]:
        """Run a tool."""
        if name == "show":
            content = picture(8, 6).to_pil()
            return [TextPart("so"), ImagePart(Image.open(content, limits))]
        if name == "wait":
            await asyncio.sleep(WAIT_S)
        text = arguments.get("text")
        if not isinstance(text, str):
            raise EngineError("the tool takes a text")
        return [TextPart(text)]

    async def aclose(self) -> None:
        """End the background task."""
        beside, self.beside = self.beside, None
        if beside is not None:
            beside.cancel()
            await asyncio.wait([beside])


class Counter:
    """One tool without arguments, which returns another number each time."""

    names = frozenset({"next-number"})

    def __init__(self) -> None:
        self._is_closed = False
        self._num_calls = 0

    async def describe(self, name: str) -> Mapping[str, Any]:
        """Return the definition of the tool, whose arguments are none."""
        takes = {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "function", "function": {"name": name, "parameters": takes}}

    async def call(
        self, name: str, arguments: Mapping[str, Any], limits: ImageLimits
    ) -> Seq[TextPart | ImagePart]:
        """Return the next number, and refuse arguments."""
        if arguments or self._is_closed:
            raise EngineError("the tool takes no arguments" if arguments else "it is closed")
        self._num_calls += 1
        return (TextPart(str(self._num_calls)),)

    async def aclose(self) -> None:
        """Refuse further calls."""
        self._is_closed = True
