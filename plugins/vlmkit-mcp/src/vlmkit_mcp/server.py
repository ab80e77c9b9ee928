"""The server of the protocol: one tool, which asks the model about pictures.

The official SDK speaks the protocol; here stands what a call does. Whatever goes wrong in one is
the tool's error, which the agent reads, and ends nothing else.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from vlmkit import Completion, __version__
from vlmkit.errors import EngineError, VlmkitError
from vlmkit.kit.traces import trace_of
from vlmkit_mcp.late_model import LateModel
from vlmkit_mcp.pictures import Pictures
from vlmkit_mcp.question import TOOL, Question, question_schema, read_question

log = logging.getLogger(__name__)

Context = ServerRequestContext[Any]
MAX_CALLS = 64  # under way at once, each of which may hold pictures; more wait
PROGRESS_S = 2.0  # between two signs of life


class Asker:
    """Answers calls of the tool.

    Args:
        model: answers, once it is loaded.
        pictures: opens what is asked about.
    """

    def __init__(self, model: LateModel, pictures: Pictures) -> None:
        self._model = model
        self._pictures = pictures
        self._places = asyncio.Semaphore(MAX_CALLS)

    async def tools(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        """Return the one tool."""
        tool = Tool(
            name=TOOL,
            title="Ask about images",
            description="Ask a vision-language model a question about one or more images, and get "
            f"its answer as text. An image is {self._pictures.meaning}.",
            input_schema=question_schema(),
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
        return ListToolsResult(tools=[tool])

    async def call(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        """Answer one call; cancelling it ends its answer."""
        if params.name != TOOL:
            raise MCPError(INVALID_PARAMS, f"there is no such tool; the only one is {TOOL}")
        with _signs_of_life(context):
            try:
                async with self._places:
                    done = await self._answer(read_question(params.arguments or {}))
            except VlmkitError as error:
                return _failed(f"{error} ({error.hint})" if error.hint else str(error))
            except Exception as error:  # noqa: BLE001 - its text may repeat the question
                log.error("a call failed:\n%s", trace_of(error))  # noqa: TRY400
                return _failed("the question could not be answered; the server's log says why")
        return CallToolResult(content=[TextContent(text=text) for text in _texts(done)])

    async def _answer(self, question: Question) -> Completion:
        model = await self._model.get()
        images = await self._pictures.opened(question.images, model.facts.bounds)
        return await model.agenerate(
            question.question, images=images, max_tokens=question.max_tokens
        )


def make_server(asker: Asker) -> Server[Any]:
    """Return a server of the protocol that has the tool."""
    return Server(
        "vlmkit",
        version=__version__,
        title="vlmkit",
        on_list_tools=asker.tools,
        on_call_tool=asker.call,
    )


def _texts(done: Completion) -> list[str]:
    """Return what an agent reads of an answer: its text, and that it was cut off."""
    choice = done.choices[0]
    if choice.finish_reason == "abort":
        raise EngineError("the answer was cut off")
    if choice.finish_reason == "length":
        return [choice.text, "[the answer was cut off at the limit of tokens]"]
    return [choice.text]


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


@contextlib.contextmanager
def _signs_of_life(context: Context) -> Iterator[None]:
    """Tell a client that asked for it, now and then, that its call is under way."""

    async def tell() -> None:
        for number in range(1, 2**31):
            await asyncio.sleep(PROGRESS_S)
            await context.session.report_progress(number)

    task = asyncio.ensure_future(tell())
    try:
        yield
    finally:
        task.cancel()
