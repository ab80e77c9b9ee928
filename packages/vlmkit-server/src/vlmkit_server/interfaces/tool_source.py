"""What a source of tools must do: tools that the server runs for a model. No implementation.

Its methods are called in the server's event loop, for several requests at once. What they wait for
holds up the request that asked for it, and no other; the server gives none of them up by itself,
so each bounds the time that it takes.
"""

from collections.abc import Mapping, Sequence as Seq
from typing import Any, Protocol

from vlmkit.settings.images import ImageLimits
from vlmkit.types.message import ImagePart, TextPart


class ToolSource(Protocol):
    """Some tools."""

    @property
    def names(self) -> frozenset[str]:
        """The tools that a request may ask for, which is known without asking anybody."""
        ...

    async def describe(self, name: str) -> Mapping[str, Any]:
        """Return the definition of a tool, in OpenAI's form.

        That is ``{"type": "function", "function": {...}}`` with ``name``, ``description`` and
        ``parameters``, the JSON schema of an object.

        Raises:
            VlmkitError: it cannot be had now.
        """
        ...

    async def call(
        self, name: str, arguments: Mapping[str, Any], limits: ImageLimits
    ) -> Seq[TextPart | ImagePart]:
        """Run a tool, and return what it says and shows; cancelled when nobody wants it any more.

        Args:
            name: the tool.
            arguments: whatever a model wrote: they need not fit the definition.
            limits: which images are refused.

        Raises:
            VlmkitError: it failed. The model is told so, in the error's words.
        """
        ...

    async def aclose(self) -> None:
        """End whatever runs; harmless when done twice."""
        ...
