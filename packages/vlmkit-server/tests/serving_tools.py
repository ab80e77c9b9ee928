"""Server-side tools for tests, and prompts that make the mock call them."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import PIL.Image
from running_server import scripted

from vlmkit.errors import EngineError
from vlmkit.settings.images import ImageLimits
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, TextPart

ANY = {"type": "object"}
SECRET = "secret reasons"
TEAL = Image.open(PIL.Image.new("RGB", (8, 6), "teal"))


class Tools:
    """A tool source whose tools return their text, return an image, fail or wait."""

    names = frozenset({"say", "show", "fail", "crash", "wait", "absent"})

    def __init__(self) -> None:
        self.called: list[tuple[str, Mapping[str, Any]]] = []
        self.is_waiting = threading.Event()
        self.is_cancelled = threading.Event()
        self.num_closed = 0

    async def describe(self, name: str) -> Mapping[str, Any]:
        if name == "absent":
            raise EngineError(SECRET)
        return {"type": "function", "function": {"name": name, "parameters": ANY}}

    async def call(
        self, name: str, arguments: Mapping[str, Any], limits: ImageLimits
    ) -> list[TextPart | ImagePart]:
        self.called.append((name, arguments))
        if name == "fail":
            raise EngineError("it is broken")
        if name == "crash":
            raise ZeroDivisionError(SECRET)
        if name == "wait":
            self.is_waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.is_cancelled.set()
        if name == "show":
            return [TextPart("a picture"), *[ImagePart(TEAL)] * int(arguments.get("num", 1))]
        return [TextPart(str(arguments.get("text")))]

    async def aclose(self) -> None:
        self.num_closed += 1


def calls(*named: tuple[str, dict[str, Any]], **more: Any) -> str:
    """Return a prompt that makes the mock call tools."""
    script = [{"name": name, "arguments": arguments} for name, arguments in named]
    return scripted(calls=script, **more)
