"""The interface of a tool source: tools that the server runs for a model. No implementation.

Its methods run in the server's event loop, for several requests at once. A slow call delays its own
request and no other. The server sets no timeout, so each method must limit its own time.
"""

from collections.abc import Mapping, Sequence as Seq
from typing import Any, Protocol

from vlmkit.settings.images import ImageLimits
from vlmkit.types.message import ImagePart, TextPart


class ToolSource(Protocol):
    """Provides some tools."""

    @property
    def names(self) -> frozenset[str]:
        """The tools that a request may use; must be known without any I/O."""
        ...

    async def describe(self, name: str) -> Mapping[str, Any]:
        """Return the definition of a tool, in OpenAI's form.

        That is ``{"type": "function", "function": {...}}`` with ``name``, ``description`` and
        ``parameters``, the JSON schema of an object.

        Raises:
            VlmkitError: the definition is unavailable now.
        """
        ...

    async def call(
        self, name: str, arguments: Mapping[str, Any], limits: ImageLimits
    ) -> Seq[TextPart | ImagePart]:
        """Run a tool, and return its text and images; cancelled when the result is not needed.

        Args:
            name: the tool.
            arguments: any object that a model wrote: it need not match the definition.
            limits: limits for images.

        Raises:
            VlmkitError: the tool failed. The model receives the error's message.
        """
        ...

    async def aclose(self) -> None:
        """Stop everything that runs; a second call must do nothing."""
        ...
