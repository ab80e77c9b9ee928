"""The MCP server with its one tool, which asks the model about images.

The official SDK implements the protocol; this module implements the tool's calls. An error in a
call is the tool's error, which the agent reads, and affects nothing else.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
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
from msgspec import Meta

from vlmkit import Completion, __version__
from vlmkit.errors import EngineError, RequestError, VlmkitError
from vlmkit.kit.traces import trace_of
from vlmkit_mcp.background_model import BackgroundModel
from vlmkit_mcp.image_opener import ImageOpener
from vlmkit_server.settings.server import ServerSettings

log = logging.getLogger(__name__)

Context = ServerRequestContext[Any]
TOOL = "ask_about_image"
MAX_CALLS = 64  # at the same time, each of which may hold images; more calls wait
PROGRESS_S = 2.0  # between two progress notifications


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a call.

    Attributes:
        question: the question.
        images: the names of the images.
        max_tokens: the most tokens of the answer; None for as many as fit the context.
    """

    question: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=ServerSettings().max_text_chars,
            description="What to ask about the images.",
        ),
    ]
    images: Annotated[
        tuple[str, ...], Meta(min_length=1, description="One or more images, shown in this order.")
    ]
    max_tokens: (
        Annotated[int, Meta(ge=1, le=2**31 - 1, description="Most tokens of the answer.")] | None
    ) = None


def question_schema() -> dict[str, Any]:
    """Return the JSON schema of a call's arguments, an object as the protocol requires."""
    _, components = msgspec.json.schema_components([Question])
    schema: dict[str, Any] = components["Question"]
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


def read_question(arguments: dict[str, Any]) -> Question:
    """Check a call's arguments.

    Raises:
        RequestError: an argument is invalid; names the first.
    """
    try:
        return msgspec.convert(arguments, Question)
    except msgspec.ValidationError as error:
        raise RequestError(f"the arguments of {TOOL} are wrong: {error}") from error


class ImageTool:
    """Lists the tool and answers its calls.

    Args:
        model: the model, once it is loaded.
        opener: opens the images of a question.
    """

    def __init__(self, model: BackgroundModel, opener: ImageOpener) -> None:
        self._model = model
        self._opener = opener
        self._slots = asyncio.Semaphore(MAX_CALLS)

    async def tools(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        """Return the tool."""
        tool = Tool(
            name=TOOL,
            title="Ask about images",
            description="Ask a vision-language model a question about one or more images, and get "
            f"its answer as text. An image is {self._opener.meaning}.",
            input_schema=question_schema(),
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
        return ListToolsResult(tools=[tool])

    async def call(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        """Answer one call; cancelling the call ends the generation."""
        if params.name != TOOL:
            raise MCPError(INVALID_PARAMS, f"there is no such tool; the only one is {TOOL}")
        with _progress(context):
            try:
                async with self._slots:
                    done = await self._answer(read_question(params.arguments or {}))
            except VlmkitError as error:
                return _failed(f"{error} ({error.hint})" if error.hint else str(error))
            except Exception as error:  # noqa: BLE001 - its text may repeat the question
                log.error("a call failed:\n%s", trace_of(error))  # noqa: TRY400
                return _failed("the question could not be answered; the server's log says why")
        return CallToolResult(content=[TextContent(text=text) for text in _texts(done)])

    async def _answer(self, question: Question) -> Completion:
        model = await self._model.get()
        images = await self._opener.open_all(question.images, model.facts.bounds)
        return await model.agenerate(
            question.question, images=images, max_tokens=question.max_tokens
        )


def make_server(tool: ImageTool) -> Server[Any]:
    """Return an MCP server with the tool."""
    return Server(
        "vlmkit",
        version=__version__,
        title="vlmkit",
        on_list_tools=tool.tools,
        on_call_tool=tool.call,
    )


def _texts(done: Completion) -> list[str]:
    """Return the text of an answer, and a note if it was cut off."""
    choice = done.choices[0]
    if choice.finish_reason == "abort":
        raise EngineError("the answer was cut off")
    if choice.finish_reason == "length":
        return [choice.text, "[the answer was cut off at the limit of tokens]"]
    return [choice.text]


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


@contextlib.contextmanager
def _progress(context: Context) -> Iterator[None]:
    """Send progress notifications during a call, if the client requested them."""

    async def report() -> None:
        for number in range(1, 2**31):
            await asyncio.sleep(PROGRESS_S)
            await context.session.report_progress(number)

    task = asyncio.ensure_future(report())
    try:
        yield
    finally:
        task.cancel()
